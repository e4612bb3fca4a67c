#include "data/stream/difficulty_order.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "core/philox.hpp"
#include "data/stream/sample_order.hpp"
#include "data/tokenize/shared_work.hpp"
#include "parallel/local_communicator.hpp"
#include "parallel/message.hpp"

namespace llmtrain {
namespace {

constexpr int64_t samples_at_once = 64;

/// Calls process(sample, ids, result) for the samples of a source, which all ranks share by runs of samples, and
/// collect(result) for each run of this rank, in order. Collective.
template <class Result, class Process, class Collect>
void each_run(const SampleSource& source, Communicator& communicator, const Process& process, const Collect& collect) {
  const int64_t samples = source.samples(), runs = (samples + samples_at_once - 1) / samples_at_once;
  share_work<Result>(
      communicator, own_items(runs, communicator),
      [&](int64_t run) {
        Result result;
        std::vector<int32_t> ids;
        const int64_t begin = run * samples_at_once;
        for (int64_t sample = begin; sample < std::min(begin + samples_at_once, samples); ++sample) {
          source.read_inputs(sample, ids);
          process(ids, result);
        }
        return result;
      },
      [&](int64_t, const Result& result) { collect(result); }, nullptr);
}

/// -log of each token's share of the inputs of all samples. Collective.
std::vector<double> token_rarities(const std::vector<SampleSource>& sources, Communicator& communicator) {
  int64_t vocabulary = 0;
  for (const SampleSource& source : sources) vocabulary = std::max(vocabulary, source.vocabulary_size());
  std::vector<int64_t> counts(static_cast<size_t>(vocabulary), 0);
  using Ids = std::vector<int32_t>;
  for (const SampleSource& source : sources) {
    each_run<Ids>(
        source, communicator, [](const Ids& ids, Ids& all) { all.insert(all.end(), ids.begin(), ids.end()); },
        [&](const Ids& ids) {
          for (const int32_t id : ids) ++counts[static_cast<size_t>(id)];
        });
  }
  communicator.sum(std::span(counts));
  const auto total = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  std::vector<double> result;
  result.reserve(counts.size());
  for (const int64_t count : counts) result.push_back(count == 0 ? 0 : std::log(total / static_cast<double>(count)));
  return result;
}

}  // namespace

std::vector<double> sample_rarities(const std::vector<SampleSource>& sources, Communicator& communicator) {
  const std::vector<double> rarity = token_rarities(sources, communicator);
  std::vector<double> all;
  using Values = std::vector<double>;
  for (const SampleSource& source : sources) {
    Values mine;
    each_run<Values>(
        source, communicator,
        [&](const std::vector<int32_t>& ids, Values& values) {
          double sum = 0;
          for (const int32_t id : ids) sum += rarity[static_cast<size_t>(id)];
          values.push_back(sum);
        },
        [&](const Values& values) { mine.insert(mine.end(), values.begin(), values.end()); });
    Message message;
    message.put(mine);
    for (std::string& text : communicator.gather_all(message.bytes())) Message(std::move(text)).take(all);
  }
  return all;
}

std::vector<double> sample_difficulties(const std::vector<SampleSource>& sources,
                                        CurriculumConfig::Difficulty::Kind kind) {
  using Kind = CurriculumConfig::Difficulty::Kind;
  LLMTRAIN_CHECK(kind != Kind::loss, "the loss order needs a model");
  if (kind == Kind::rarity) return sample_rarities(sources, *make_local_communicator());
  std::vector<double> values;
  for (const SampleSource& source : sources) {
    for (int64_t sample = 0; sample < source.samples(); ++sample) {
      values.push_back(kind == Kind::column ? source.mean_value(sample)
                                            : static_cast<double>(source.index().inputs(sample)));
    }
  }
  return values;
}

DifficultyOrder::DifficultyOrder(const std::vector<SampleSource>& sources, std::span<const double> difficulties) {
  for (const SampleSource& source : sources) {
    const auto first = static_cast<size_t>(source.first_id());
    Order& order = order_.emplace_back();
    order.samples.resize(static_cast<size_t>(source.samples()));
    std::iota(order.samples.begin(), order.samples.end(), source.first_id());
    LLMTRAIN_CHECK(first + order.samples.size() <= difficulties.size(), "a sample without a difficulty");
    const auto difficulty = [&](int64_t sample) { return difficulties[static_cast<size_t>(sample)]; };
    std::ranges::stable_sort(order.samples, {}, difficulty);
    for (const int64_t sample : order.samples) order.difficulties.push_back(difficulty(sample));
  }
}

int64_t DifficultyOrder::pool(size_t source, double value, CurriculumConfig::Scale scale) const {
  const std::vector<double>& difficulties = order_[source].difficulties;
  const int64_t pool = scale == CurriculumConfig::Scale::percent
                           ? std::ssize(difficulties) * static_cast<int64_t>(value) / 100
                           : std::ranges::upper_bound(difficulties, value) - difficulties.begin();
  return std::max<int64_t>(1, pool);
}

int64_t DifficultyOrder::sample(size_t source, int64_t pool, int64_t level, int64_t draw, uint64_t seed) const {
  const auto round = static_cast<uint64_t>(draw / pool);
  const uint64_t key =
      random_key(seed, RandomPurpose::sample_order, static_cast<uint64_t>(level) | (round + 1) << 40, source);
  return order_[source].samples[static_cast<size_t>(SampleOrder(pool, key)(draw % pool))];
}

}  // namespace llmtrain
