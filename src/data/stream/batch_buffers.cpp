#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <limits>

#include "core/error.hpp"
#include "data/stream/data_stream.hpp"

namespace llmtrain {

namespace {

/// Bytes of a column in the memory of a batch.
int64_t column_bytes(int64_t values, DType dtype) {
  return (values * static_cast<int64_t>(size_of(dtype)) + 63) / 64 * 64;
}

}  // namespace

void BatchBuffers::plan(Arena& arena, int64_t max_rows, int64_t max_segments, int64_t kept_words, int64_t min_rows,
                        int64_t max_numbers) {
  min_rows_ = min_rows;
  if (min_rows > 1) {  // with a segment of padding
    max_rows = std::max(max_rows, min_rows);
    ++max_segments;
  }
  max_rows_ = max_rows;
  max_borders_ = max_segments + 1;
  kept_words_ = kept_words;
  max_numbers_ = max_numbers;
  const int64_t of_rows = 5 * column_bytes(max_rows, DType::i32) + column_bytes(max_rows, DType::i64);
  const int64_t others = column_bytes(max_borders_, DType::i32) + column_bytes(max_rows * kept_words, DType::u32) +
                         column_bytes(max_numbers, DType::u32);
  arena.add(memory_, MemoryCategory::data, "batch", DType::u8, {of_rows + others});
}

Batch BatchBuffers::upload_padded(HostBatch host, int64_t padding, Stream& stream) {
  LLMTRAIN_CHECK(host.documents.ids.empty() && host.kept.empty(), "batches of documents are not short");
  host.pad(padding, padding, std::numeric_limits<int64_t>::max());
  return upload(host, stream);
}

Batch BatchBuffers::upload(const HostBatch& host, Stream& stream, std::span<const uint32_t> numbers) {
  const int64_t rows = std::ssize(host.ids), borders = std::ssize(host.segments);
  if (rows < min_rows_) return upload_padded(host, min_rows_ - rows, stream);
  LLMTRAIN_CHECK(borders >= 2 && rows <= max_rows_ && borders <= max_borders_ && std::ssize(numbers) <= max_numbers_,
                 "a batch larger than planned");
  Batch batch;
  batch.tokens = rows;
  batch.segment_count = borders - 1;
  batch.padding = host.padding;
  for (size_t s = 1; s < host.segments.size(); ++s) {
    batch.longest_segment = std::max<int64_t>(batch.longest_segment, host.segments[s] - host.segments[s - 1]);
  }
  std::optional<Staging>& staging = staging_[next_];
  next_ = 1 - next_;
  if (staging) {
    staging->copied.synchronize();
  } else {
    staging.emplace(memory_.bytes());
  }
  auto* const staged = static_cast<std::byte*>(staging->memory.data());
  auto* const device = static_cast<std::byte*>(memory_.data);
  int64_t end = 0;
  const auto place = [&](DType dtype, std::initializer_list<int64_t> shape, const auto& values) {
    const Tensor view(device + end, dtype, shape);
    LLMTRAIN_CHECK(view.numel() == std::ssize(values), "a column of a batch is incomplete");
    if (view.numel() > 0) std::memcpy(staged + end, values.data(), static_cast<size_t>(view.bytes()));
    end += column_bytes(view.numel(), dtype);
    return view;
  };
  batch.ids = place(DType::i32, {rows}, host.ids);
  batch.positions = place(DType::i32, {rows}, host.positions);
  batch.targets = place(DType::i32, {rows}, host.targets);
  batch.loss_weights = place(DType::f32, {rows}, host.loss_weights);
  batch.segments = place(DType::i32, {borders}, host.segments);
  batch.sequence_ids = place(DType::i64, {rows}, host.sequence_ids);
  batch.sequence_offsets = place(DType::i32, {rows}, host.sequence_offsets);
  if (!host.kept.empty()) batch.kept = place(DType::u32, {rows, kept_words_}, host.kept);
  numbers_ = place(DType::u32, {std::ssize(numbers)}, numbers);
  copy_to_device(memory_.data, staged, end, stream);
  staging->copied.record(stream);
  documents_ = host.documents;
  if (!documents_.ids.empty()) batch.documents = &documents_;
  rollout_ = host.rollout;
  if (!rollout_.old_logp.empty()) batch.rollout = &rollout_;
  return batch;
}

}  // namespace llmtrain
