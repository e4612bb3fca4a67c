#include "data/stream/data_stream.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <mutex>
#include <utility>

#include "core/error.hpp"
#include "core/philox.hpp"
#include "data/stream/difficulty_order.hpp"
#include "data/stream/mixture.hpp"
#include "data/stream/packing.hpp"
#include "data/stream/sample_order.hpp"
#include "data/stream/sample_source.hpp"

namespace llmtrain {
namespace {

std::vector<double> weights_of(const std::vector<WeightedTokens>& files) {
  std::vector<double> weights;
  weights.reserve(files.size());
  for (const WeightedTokens& file : files) weights.push_back(file.weight);
  return weights;
}

}  // namespace

struct DataStream::State {
  /// Samples of a source that a step may draw.
  struct EasySamples {
    int64_t pool;    // their number
    int64_t level;   // first step with this number
    int64_t before;  // draws before this step
  };
  State(const std::vector<WeightedTokens>& files, const SampleRules& data, const BatchConfig& batch_config,
        uint64_t seed_value, bool shuffled, const CurriculumConfig& growing, std::span<const double> difficulties)
      : batch(batch_config),
        curriculum(growing),
        rounded(data.packing != DataConfig::Packing::wrap ||
                (!files.empty() && files.front().tokens->info().has_groups())),
        max_tokens(data.max_tokens_per_batch),
        grouped(data.group_by_length && shuffled),
        seed(seed_value),
        shuffle(shuffled) {
    LLMTRAIN_CHECK(batch.micro >= 1 && batch.global >= batch.micro && batch.global % batch.micro == 0,
                   "batch.global must be a multiple of batch.micro");
    LLMTRAIN_CHECK(!files.empty(), "a stream needs at least one source");
    for (const WeightedTokens& file : files) {
      const SampleCounts& added = sources.emplace_back(file.tokens, data, batch, counts.samples).index().counts();
      counts += added;
      longest = std::max(longest, sources.back().index().longest());
    }
    refuse_large_pairs();
    if (files.size() > 1) mixture.emplace(weights_of(files));
    if (mixture && grouped) {
      throw UserError(ExitCode::deck, "data.group_by_length: sources with weights cannot be grouped by length");
    }
    order_by(difficulties);
  }
  void order_by(std::span<const double> difficulties) {
    using Kind = CurriculumConfig::Difficulty::Kind;
    if (curriculum.strategy != CurriculumConfig::Strategy::difficulty) return;
    const Kind kind = curriculum.difficulty.kind;
    if (!difficulties.empty()) {
      order.emplace(sources, difficulties);
    } else if (kind != Kind::loss) {
      order.emplace(sources, sample_difficulties(sources, kind));
    }
  }

  const SampleSource& source_of(int64_t id) const {
    const auto next =
        std::upper_bound(sources.begin(), sources.end(), id,
                         [](int64_t value, const SampleSource& source) { return value < source.first_id(); });
    return *(next - 1);
  }
  int64_t inputs_of(int64_t id) const {
    const SampleSource& source = source_of(id);
    return source.index().inputs(id - source.first_id());
  }
  /// `limit`: maximum number of inputs of a sample.
  int64_t rows_of(const std::vector<int64_t>& ids, int64_t limit) const {
    int64_t rows = 0;
    for (const int64_t id : ids) rows += std::min(inputs_of(id), limit);
    return rounded ? rounded_rows(rows) : rows;
  }
  /// Returns the end of the micro-batch that begins at ids[begin].
  size_t end_of_micro_batch(const std::vector<int64_t>& ids, size_t begin, int64_t limit) const {
    if (max_tokens == 0) return std::min(begin + static_cast<size_t>(batch.micro), ids.size());
    size_t end = begin;
    int64_t rows = 0;
    do rows += std::min(inputs_of(ids[end++]), limit);
    while (end < ids.size() && rows + std::min(inputs_of(ids[end]), limit) <= max_tokens);
    return end;
  }
  int64_t pool_of(size_t source, int64_t step) const {
    return order->pool(source, curriculum.value(step + 1), curriculum.scale);
  }
  /// Returns the first step whose pool of a source is that of this step.
  int64_t first_step_of_pool(size_t source, int64_t step) const {
    const int64_t pool = pool_of(source, step);
    int64_t low = 0, high = step;  // pools grow
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (pool_of(source, middle) < pool) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }
  /// Lists the samples of a step of a curriculum of difficulties.
  void easy_samples_of(int64_t step, std::vector<int64_t>& ids) const {
    std::vector<EasySamples> pools;
    for (size_t source = 0; source < sources.size(); ++source) {
      const int64_t first = first_step_of_pool(source, step), before = first * batch.global;
      pools.push_back({pool_of(source, step), first, mixture ? mixture->taken_before(before, source) : before});
    }
    ids.clear();
    for (int64_t n = step * batch.global; n < (step + 1) * batch.global; ++n) {
      const Mixture::Choice choice = mixture ? (*mixture)(n) : Mixture::Choice{0, n};
      const EasySamples& easy = pools[choice.source];
      ids.push_back(order->sample(choice.source, easy.pool, easy.level, choice.number - easy.before, seed));
    }
  }
  /// Returns the sample at index `place` of an epoch of a source.
  int64_t ordered(size_t source, int64_t epoch, int64_t place) const {
    if (!shuffle) return sources[source].first_id() + place;
    const uint64_t key = random_key(seed, RandomPurpose::sample_order, static_cast<uint64_t>(epoch), source);
    return sources[source].first_id() + SampleOrder(sources[source].samples(), key)(place);
  }
  /// The order of an epoch of the only source by groups of equal length.
  std::shared_ptr<const std::vector<int64_t>> grouped_order(int64_t epoch) const {
    const std::lock_guard lock(mutex);
    if (epoch_order == nullptr || order_epoch != epoch) {
      std::vector<int64_t> ids(static_cast<size_t>(counts.samples));
      for (int64_t place = 0; place < counts.samples; ++place)
        ids[static_cast<size_t>(place)] = ordered(0, epoch, place);
      group_by_length(ids, batch.global, [&](int64_t id) { return inputs_of(id); });
      epoch_order = std::make_shared<const std::vector<int64_t>>(std::move(ids));
      order_epoch = epoch;
    }
    return epoch_order;
  }
  /// Lists the samples of a step. For one source: those of its epoch, which can end within the step; for several: an
  /// endless stream, in which every source has its own epochs.
  void samples_of(int64_t step, int64_t steps_per_epoch, std::vector<int64_t>& ids) const {
    ids.clear();
    if (mixture) {
      for (int64_t n = step * batch.global; n < (step + 1) * batch.global; ++n) {
        const Mixture::Choice choice = (*mixture)(n);
        const int64_t samples = sources[choice.source].samples();
        ids.push_back(ordered(choice.source, choice.number / samples, choice.number % samples));
      }
      return;
    }
    const int64_t first = step % steps_per_epoch * batch.global;
    const int64_t last = std::min(first + batch.global, counts.samples);
    const int64_t epoch = step / steps_per_epoch;
    if (grouped) {
      const auto all = grouped_order(epoch);
      ids.assign(all->begin() + first, all->begin() + last);
      return;
    }
    for (int64_t place = first; place < last; ++place) ids.push_back(ordered(0, epoch, place));
  }
  /// Returns the maximum number of distinct samples in a micro-batch.
  int64_t max_samples() const {
    const int64_t most = max_tokens > 0 ? batch.global : batch.micro;
    return mixture ? most : std::min(most, counts.samples);
  }
  /// A pair has up to twice the tokens that the deck was checked for.
  void refuse_large_pairs() const {
    if (counts.group < 2) return;
    if (max_tokens > 0 && longest > max_tokens) {
      throw UserError(ExitCode::deck,
                      fmt::format("data.max_tokens_per_batch: {} is less than the longest pair has: {} tokens",
                                  max_tokens, longest));
    }
    if (max_tokens == 0 && longest > (int64_t{1} << 31) / batch.micro) {
      throw UserError(
          ExitCode::deck,
          fmt::format("batch.micro: {} pairs of up to {} tokens are more than 2^31 tokens in a forward pass",
                      batch.micro, longest));
    }
  }

  BatchConfig batch;
  CurriculumConfig curriculum;
  bool rounded;        // rows vary from batch to batch
  int64_t max_tokens;  // inputs of a micro-batch of several samples; 0: no limit
  bool grouped;        // samples of an epoch are grouped by length
  uint64_t seed;
  bool shuffle;
  SampleCounts counts;  // sum over the sources
  int64_t longest = 0;  // inputs of a sample
  std::vector<SampleSource> sources;
  std::optional<Mixture> mixture;
  std::optional<DifficultyOrder> order;

 private:
  mutable std::mutex mutex;
  mutable std::shared_ptr<const std::vector<int64_t>> epoch_order;  // of the last epoch that was asked for
  mutable int64_t order_epoch = -1;
};

DataStream::DataStream(const std::vector<WeightedTokens>& sources, const SampleRules& data, const BatchConfig& batch,
                       uint64_t seed, bool shuffle, const CurriculumConfig& curriculum,
                       std::span<const double> difficulties)
    : state_(std::make_shared<const State>(sources, data, batch, seed, shuffle, curriculum, difficulties)) {}

DataStream::DataStream(std::shared_ptr<const TokenFile> file, const SampleRules& data, const BatchConfig& batch,
                       uint64_t seed, bool shuffle)
    : DataStream(std::vector<WeightedTokens>{{std::move(file), 1}}, data, batch, seed, shuffle) {}

int64_t DataStream::samples() const { return state_->counts.samples; }

int64_t DataStream::steps_per_epoch() const { return (samples() + state_->batch.global - 1) / state_->batch.global; }

int64_t DataStream::max_rows() const {
  const int64_t longest = state_->longest;
  int64_t rows = state_->max_samples() * longest;
  if (state_->max_tokens > 0) rows = std::min(rows, std::max(longest, state_->max_tokens));
  return state_->rounded ? rounded_rows(rows) : rows;
}

int64_t DataStream::max_segments() const {
  const int64_t length = state_->batch.sequence_length;
  int64_t in_sample = 0;
  for (const SampleSource& source : state_->sources) in_sample = std::max(in_sample, source.max_segments());
  const int64_t padding = state_->rounded ? (rounded_rows(1) - 1 + length - 1) / length : 0;
  int64_t segments = state_->max_samples() * in_sample;
  if (state_->max_tokens > 0) segments = std::min(segments, std::max(in_sample, state_->max_tokens));
  return segments + padding;
}

const SampleCounts& DataStream::counts() const { return state_->counts; }

std::vector<SourceShare> DataStream::sources() const {
  std::vector<SourceShare> all;
  all.reserve(state_->sources.size());
  for (const SampleSource& source : state_->sources) {
    SourceShare& added = all.emplace_back(SourceShare{1, source.samples()});
    if (!state_->mixture) continue;
    const Mixture& mixture = *state_->mixture;
    added.share = static_cast<double>(mixture.shares()[all.size() - 1]) / static_cast<double>(mixture.cycle());
  }
  return all;
}

std::vector<double> DataStream::rarities(Communicator& communicator) const {
  return sample_rarities(state_->sources, communicator);
}

const DifficultyOrder* DataStream::difficulty_order() const { return state_->order ? &*state_->order : nullptr; }

int64_t DataStream::without_target(int64_t first, int64_t last) const {
  int64_t count = 0;
  std::vector<uint8_t> mask;
  for (int64_t id = first; id < last; ++id) {
    const SampleSource& source = state_->source_of(id);
    if (source.may_lack_targets() && source.trained_targets(id - source.first_id(), mask) == 0) ++count;
  }
  return count;
}

void DataStream::plan(int64_t step, StepPlan& plan) const {
  LLMTRAIN_CHECK(step >= 0, "steps count from 0");
  const State& state = *state_;
  plan.step = step;
  plan.epoch = step / steps_per_epoch();
  plan.trained_tokens = 0;
  const std::vector<int64_t>& all = plan.samples;
  plan.curriculum.reset();
  if (state.curriculum.active()) plan.curriculum = state.curriculum.value(step + 1);
  const bool cuts = state.curriculum.strategy == CurriculumConfig::Strategy::length;
  const int64_t limit = cuts ? static_cast<int64_t>(*plan.curriculum) : SampleSource::no_limit;
  if (state.order) {
    state.easy_samples_of(step, plan.samples);
  } else {
    state.samples_of(step, steps_per_epoch(), plan.samples);
  }
  int64_t first_targets = 0;
  for (const int64_t id : all) {
    const SampleSource& source = state.source_of(id);
    plan.trained_tokens += source.trained_targets(id - source.first_id(), plan.mask, limit);
    if (source.has_groups()) first_targets += source.trained_targets(id - source.first_id(), 0, plan.mask);
  }
  const double mean_first_targets =
      first_targets > 0 ? static_cast<double>(first_targets) / static_cast<double>(all.size()) : 1;
  plan.samples_hash = XXH3_64bits(all.data(), all.size() * sizeof(int64_t));
  size_t count = 0;
  for (size_t begin = 0; begin < all.size(); ++count) {
    const size_t end = state.end_of_micro_batch(all, begin, limit);
    if (count == plan.micro_batches.size()) plan.micro_batches.emplace_back();
    MicroBatchPlan& micro = plan.micro_batches[count];
    micro.index = static_cast<int64_t>(count);
    micro.samples.assign(all.begin() + static_cast<std::ptrdiff_t>(begin),
                         all.begin() + static_cast<std::ptrdiff_t>(end));
    micro.rows = state.rows_of(micro.samples, limit);
    micro.longest = cuts ? limit : 0;
    micro.first_document = static_cast<int64_t>(begin) * documents_of_sample();
    micro.mean_first_targets = mean_first_targets;
    begin = end;
  }
  plan.micro_batches.resize(count);
}

MicroBatchPlan DataStream::canonical(int64_t first, int64_t last) const {
  MicroBatchPlan plan;
  for (int64_t id = first; id < last; ++id) plan.samples.push_back(id);
  plan.rows = state_->rows_of(plan.samples, SampleSource::no_limit);
  return plan;
}

void DataStream::load_mismatched(const StepPlan& step, const MicroBatchPlan& plan, HostBatch& out) const {
  out.clear();
  const auto first = static_cast<size_t>(plan.first_document);
  for (size_t i = 0; i < plan.samples.size(); ++i) {
    const size_t place = first + i, before = (place == 0 ? step.samples.size() : place) - 1;
    const int64_t id = step.samples[place], other = step.samples[before];
    const SampleSource &source = state_->source_of(id), &from = state_->source_of(other);
    source.append_mismatched(id - source.first_id(), from, other - from.first_id(), state_->batch.sequence_length, out);
  }
  const auto rows = static_cast<int64_t>(out.ids.size());
  out.pad(rounded_rows(rows) - rows, state_->batch.sequence_length, samples());
}

void DataStream::read_prompt(int64_t sample, std::vector<int32_t>& ids) const {
  const SampleSource& source = state_->source_of(sample);
  source.read_prompt(sample - source.first_id(), ids);
}

StoredRow DataStream::row(int64_t sample) const {
  const SampleSource& source = state_->source_of(sample);
  return source.row(sample - source.first_id());
}

void DataStream::load(const MicroBatchPlan& plan, HostBatch& out) const {
  out.clear();
  out.documents.mean_first_targets = plan.mean_first_targets;
  out.documents.first_in_step = plan.first_document;
  for (const int64_t id : plan.samples) {
    const SampleSource& source = state_->source_of(id);
    source.append(id - source.first_id(), out, plan.longest > 0 ? plan.longest : SampleSource::no_limit);
  }
  out.pad(plan.rows - static_cast<int64_t>(out.ids.size()), state_->batch.sequence_length, samples());
}

}  // namespace llmtrain
