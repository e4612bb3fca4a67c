#include <algorithm>
#include <cstring>
#include <limits>

#include "core/error.hpp"
#include "data/stream/data_stream.hpp"

namespace llmtrain {

void BatchBuffers::plan(Arena& arena, int64_t max_rows, int64_t max_segments, int64_t kept_words, int64_t min_rows) {
  min_rows_ = min_rows;
  if (min_rows > 1) {  // with a segment of padding
    max_rows = std::max(max_rows, min_rows);
    ++max_segments;
  }
  constexpr MemoryCategory category = MemoryCategory::data;
  arena.add(buffers_.ids, category, "batch ids", DType::i32, {max_rows});
  arena.add(buffers_.positions, category, "batch positions", DType::i32, {max_rows});
  arena.add(buffers_.targets, category, "batch targets", DType::i32, {max_rows});
  arena.add(buffers_.loss_weights, category, "batch loss weights", DType::f32, {max_rows});
  arena.add(buffers_.segments, category, "batch segments", DType::i32, {max_segments + 1});
  arena.add(buffers_.sequence_ids, category, "batch sequence ids", DType::i64, {max_rows});
  arena.add(buffers_.sequence_offsets, category, "batch sequence offsets", DType::i32, {max_rows});
  if (kept_words > 0) arena.add(buffers_.kept, category, "batch kept tokens", DType::u32, {max_rows, kept_words});
}

Batch BatchBuffers::upload_padded(HostBatch host, int64_t padding, Stream& stream) {
  LLMTRAIN_CHECK(host.documents.ids.empty() && host.kept.empty(), "batches of documents are not short");
  host.pad(padding, padding, std::numeric_limits<int64_t>::max());
  return upload(host, stream);
}

Batch BatchBuffers::upload(const HostBatch& host, Stream& stream) {
  const int64_t rows = static_cast<int64_t>(host.ids.size());
  if (rows < min_rows_) return upload_padded(host, min_rows_ - rows, stream);
  const int64_t borders = static_cast<int64_t>(host.segments.size());
  LLMTRAIN_CHECK(borders >= 2 && rows <= buffers_.ids.dim(0) && borders <= buffers_.segments.dim(0),
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
    int64_t bytes = 0;
    for (const Tensor* t : {&buffers_.ids, &buffers_.positions, &buffers_.targets, &buffers_.loss_weights,
                            &buffers_.segments, &buffers_.sequence_ids, &buffers_.sequence_offsets, &buffers_.kept}) {
      bytes += t->bytes();
    }
    staging.emplace(bytes);
  }
  auto* free = static_cast<std::byte*>(staging->memory.data());
  const auto copy = [&](const Tensor& buffer, const auto& values) {
    const Tensor view = buffer.rows(0, static_cast<int64_t>(values.size()) / (buffer.numel() / buffer.dim(0)));
    std::memcpy(free, values.data(), static_cast<size_t>(view.bytes()));
    copy_to_device(view.data, free, view.bytes(), stream);
    free += view.bytes();
    return view;
  };
  batch.ids = copy(buffers_.ids, host.ids);
  batch.positions = copy(buffers_.positions, host.positions);
  batch.targets = copy(buffers_.targets, host.targets);
  batch.loss_weights = copy(buffers_.loss_weights, host.loss_weights);
  batch.segments = copy(buffers_.segments, host.segments);
  batch.sequence_ids = copy(buffers_.sequence_ids, host.sequence_ids);
  batch.sequence_offsets = copy(buffers_.sequence_offsets, host.sequence_offsets);
  if (!host.kept.empty()) batch.kept = copy(buffers_.kept, host.kept);
  staging->copied.record(stream);
  documents_ = host.documents;
  if (!documents_.ids.empty()) batch.documents = &documents_;
  rollout_ = host.rollout;
  if (!rollout_.old_logp.empty()) batch.rollout = &rollout_;
  return batch;
}

}  // namespace llmtrain
