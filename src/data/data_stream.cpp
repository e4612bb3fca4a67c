#include "data/data_stream.hpp"

#include <xxhash.h>

#include <algorithm>

#include "core/error.hpp"
#include "core/philox.hpp"
#include "data/sample_index.hpp"
#include "data/sample_order.hpp"

namespace llmtrain {
namespace {

/// Token counts of concatenated samples are rounded up to this, so that few shapes occur.
constexpr int64_t row_bucket = 128;

int64_t rounded_rows(int64_t rows) { return (rows + row_bucket - 1) / row_bucket * row_bucket; }

}  // namespace

struct DataStream::State {
  State(std::shared_ptr<const TokenFile> tokens, const DataConfig& data, const BatchConfig& batch_config,
        uint64_t seed_value, bool shuffled)
      : file(std::move(tokens)),
        batch(batch_config),
        rounded(data.packing == DataConfig::Packing::none),
        across_documents(data.cross_document_attention && !rounded),
        seed(seed_value),
        shuffle(shuffled),
        index(*file, data, batch_config) {
    LLMTRAIN_CHECK(batch.micro >= 1 && batch.global >= batch.micro && batch.global % batch.micro == 0,
                   "batch.global must be a multiple of batch.micro");
    require_trained_target();
  }

  /// Found in the first sample of any sane file.
  void require_trained_target() const {
    std::vector<uint8_t> mask;
    for (int64_t sample = 0; sample < index.counts().samples; ++sample) {
      if (trained_targets(sample, mask) > 0) return;
    }
    throw UserError(ExitCode::bad_content,
                    file->info().path +
                        ": no token of it is a target to train on: every label is -100, the mask is 0 everywhere, or "
                        "no document has two tokens");
  }

  int64_t rows_of(const std::vector<int64_t>& samples) const {
    int64_t rows = 0;
    for (const int64_t sample : samples) rows += index.place(sample).inputs;
    return rounded ? rounded_rows(rows) : rows;
  }

  /// Borders of documents in (begin, begin + inputs]: targets there are another document's first token.
  std::span<const uint64_t> borders_in(const SamplePlace& place) const {
    if (rounded) return {};  // a sample lies in one document
    const std::span<const uint64_t> all = file->documents();
    const auto begin = static_cast<uint64_t>(place.begin), end = static_cast<uint64_t>(place.begin + place.inputs);
    const auto first = std::upper_bound(all.begin(), all.end(), begin);
    const auto most = std::min<std::ptrdiff_t>(place.inputs, all.end() - first);
    return {first, std::upper_bound(first, first + most, end)};
  }

  int64_t trained_targets(int64_t sample, std::vector<uint8_t>& mask) const {
    const SamplePlace place = index.place(sample);
    const std::span<const uint64_t> borders = borders_in(place);
    if (!file->info().has_mask) return place.inputs - static_cast<int64_t>(borders.size());
    mask.resize(static_cast<size_t>(place.inputs));
    file->read_mask(place.begin + 1, place.inputs, mask.data());
    int64_t count = std::count(mask.begin(), mask.end(), uint8_t{1});
    for (const uint64_t border : borders)
      count -= mask[static_cast<size_t>(border) - static_cast<size_t>(place.begin) - 1];
    return count;
  }

  void append_sample(int64_t sample, HostBatch& out) const;
  void append_padding(int64_t rows, HostBatch& out) const;

  std::shared_ptr<const TokenFile> file;
  BatchConfig batch;
  bool rounded;           // rows of a micro-batch vary
  bool across_documents;  // attention and positions go on over document borders
  uint64_t seed;
  bool shuffle;
  SampleIndex index;
};

void DataStream::State::append_sample(int64_t sample, HostBatch& out) const {
  const SamplePlace place = index.place(sample);
  const size_t n = static_cast<size_t>(place.inputs), row = out.ids.size();
  out.window.resize(n + 1);
  file->read(place.begin, place.inputs + 1, out.window.data());
  out.ids.insert(out.ids.end(), out.window.begin(), out.window.end() - 1);
  out.targets.insert(out.targets.end(), out.window.begin() + 1, out.window.end());
  out.loss_weights.insert(out.loss_weights.end(), n, 1.0F);
  out.sequence_ids.insert(out.sequence_ids.end(), n, sample);
  const auto drop = [&](size_t i) {
    out.targets[row + i] = ignore_target;
    out.loss_weights[row + i] = 0;
  };
  if (file->info().has_mask) {
    out.window_mask.resize(n);
    file->read_mask(place.begin + 1, place.inputs, out.window_mask.data());
    for (size_t i = 0; i < n; ++i) {
      if (out.window_mask[i] == 0) drop(i);
    }
  }
  size_t segment = 0;  // first row of the sample in the current one
  const auto close_segment = [&](size_t end) {
    for (size_t i = segment; i < end; ++i) out.positions.push_back(static_cast<int32_t>(i - segment));
    out.segments.push_back(static_cast<int32_t>(row + end));
    segment = end;
  };
  for (const uint64_t border : borders_in(place)) {
    const size_t i = static_cast<size_t>(border) - static_cast<size_t>(place.begin);  // of the next document's start
    drop(i - 1);
    if (!across_documents && i < n) close_segment(i);
  }
  close_segment(n);
  for (size_t i = 0; i < n; ++i) out.sequence_offsets.push_back(static_cast<int32_t>(i));
}

/// Rows that count for nothing, in segments of their own no longer than a sample may be.
void DataStream::State::append_padding(int64_t rows, HostBatch& out) const {
  while (rows > 0) {
    const int64_t n = std::min(rows, batch.sequence_length);
    const size_t count = static_cast<size_t>(n);
    out.ids.insert(out.ids.end(), count, 0);
    out.targets.insert(out.targets.end(), count, ignore_target);
    out.loss_weights.insert(out.loss_weights.end(), count, 0.0F);
    out.sequence_ids.insert(out.sequence_ids.end(), count, index.counts().samples);
    for (int32_t i = 0; i < n; ++i) {
      out.positions.push_back(i);
      out.sequence_offsets.push_back(i);
    }
    out.segments.push_back(static_cast<int32_t>(out.ids.size()));
    rows -= n;
  }
}

DataStream::DataStream(std::shared_ptr<const TokenFile> file, const DataConfig& data, const BatchConfig& batch,
                       uint64_t seed, bool shuffle)
    : state_(std::make_shared<const State>(std::move(file), data, batch, seed, shuffle)) {}

int64_t DataStream::samples() const { return state_->index.counts().samples; }

int64_t DataStream::steps_per_epoch() const { return (samples() + state_->batch.global - 1) / state_->batch.global; }

int64_t DataStream::max_rows() const {
  const int64_t rows = std::min(state_->batch.micro, samples()) * state_->index.longest();
  return state_->rounded ? rounded_rows(rows) : rows;
}

int64_t DataStream::max_segments() const {
  const int64_t length = state_->batch.sequence_length;
  const int64_t in_sample = state_->across_documents ? 1 : state_->index.most_documents();
  const int64_t padding = state_->rounded ? (row_bucket - 1 + length - 1) / length : 0;
  return std::min(state_->batch.micro, samples()) * in_sample + padding;
}

const SampleCounts& DataStream::counts() const { return state_->index.counts(); }

StepPlan DataStream::plan(int64_t step) const {
  LLMTRAIN_CHECK(step >= 0, "steps count from 0");
  const State& state = *state_;
  StepPlan plan;
  plan.step = step;
  plan.epoch = step / steps_per_epoch();
  const SampleOrder order(samples(),
                          random_key(state.seed, RandomPurpose::sample_order, static_cast<uint64_t>(plan.epoch)));
  const int64_t first = step % steps_per_epoch() * state.batch.global;
  const int64_t last = std::min(first + state.batch.global, samples());
  std::vector<int64_t> all;
  std::vector<uint8_t> mask;
  for (int64_t place = first; place < last; ++place) {
    all.push_back(state.shuffle ? order(place) : place);
    plan.trained_tokens += state.trained_targets(all.back(), mask);
  }
  plan.samples_hash = XXH3_64bits(all.data(), all.size() * sizeof(int64_t));
  for (int64_t begin = 0; begin < last - first; begin += state.batch.micro) {
    MicroBatchPlan& micro = plan.micro_batches.emplace_back();
    micro.index = begin / state.batch.micro;
    micro.samples.assign(all.begin() + begin, all.begin() + std::min(begin + state.batch.micro, last - first));
    micro.rows = state.rows_of(micro.samples);
  }
  return plan;
}

void DataStream::load(const MicroBatchPlan& plan, HostBatch& out) const {
  for (auto* list : {&out.ids, &out.positions, &out.targets, &out.segments, &out.sequence_offsets}) list->clear();
  out.sequence_ids.clear();
  out.loss_weights.clear();
  out.segments.push_back(0);
  for (const int64_t sample : plan.samples) state_->append_sample(sample, out);
  state_->append_padding(plan.rows - static_cast<int64_t>(out.ids.size()), out);
}

}  // namespace llmtrain
