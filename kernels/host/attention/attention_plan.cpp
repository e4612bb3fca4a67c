#include "kernels/host/attention/attention_plan.hpp"

#include "kernels/attention_checks.hpp"
#include "kernels/host/parallel.hpp"

namespace llmtrain {

namespace host {

ItemList::Item ItemList::operator[](int64_t index) const {
  const int64_t s = std::upper_bound(items_begin, items_begin + count + 1, index) - items_begin - 1;
  const Segment segment{segments[s], segments[s + 1] - segments[s]};
  const int strips = (segment.blocks() + blocks_per_strip - 1) / blocks_per_strip;
  const int64_t inside = index - items_begin[s];
  return {segment, static_cast<int>(inside / strips), strips - 1 - static_cast<int>(inside % strips)};
}

AttentionWorkspace::AttentionWorkspace(void* base, const AttentionShape& shape, int64_t rows) {
  Carver carver(base);
  counters = carver.take<AttentionCounters>(1);
  items_begin = carver.take<int64_t>(rows + 1);
  delta = carver.take<float>(shape.heads * rows);
  turns = carver.take<int32_t>(shape.heads * rows);
  dq = carver.take<float>(shape.heads * rows * shape.head_dim);
  shares = carver.take<char>(0);
  shared_bytes = carver.used();
  const int head_dim = static_cast<int>(shape.head_dim);
  share_bytes = std::max(forward_piece_bytes(head_dim), backward_piece_bytes(head_dim));
}

AttentionWorkspace AttentionWorkspace::open(const Tensor& workspace, const AttentionShape& shape, int64_t rows) {
  AttentionWorkspace w(workspace.data, shape, rows);
  const int64_t fitting = (workspace.bytes() - w.shared_bytes) / w.share_bytes;
  LLMTRAIN_CHECK(!workspace.empty() && fitting >= 1, "the workspace of attention is too small");
  w.workers = static_cast<int>(std::min<int64_t>(thread_count(), fitting));
  return w;
}

double product_flops(const Batch& batch, const AttentionShape& shape) {
  const int32_t* segments = batch.segments.as<int32_t>();
  double pairs = 0;
  for (int64_t s = 0; s < batch.segment_count; ++s) {
    const double length = segments[s + 1] - segments[s];
    const double window = shape.window == 0 ? length : std::min(length, static_cast<double>(shape.window));
    pairs += window * (length - window) + window * (window + 1) / 2;
  }
  return 2 * pairs * static_cast<double>(shape.heads * shape.head_dim);
}

ItemList plan_items(const AttentionWorkspace& workspace, const Batch& batch, int units, int blocks_per_strip) {
  const int32_t* segments = batch.segments.as<int32_t>();
  const int64_t count = batch.segment_count;
  workspace.items_begin[0] = 0;
  for (int64_t s = 0; s < count; ++s) {
    const Segment segment{segments[s], segments[s + 1] - segments[s]};
    LLMTRAIN_CHECK(segment.length > 0, "empty segment in a batch");
    const int strips = (segment.blocks() + blocks_per_strip - 1) / blocks_per_strip;
    workspace.items_begin[s + 1] = workspace.items_begin[s] + int64_t{units} * strips;
  }
  LLMTRAIN_CHECK(count == 0 || (segments[0] == 0 && segments[count] == batch.tokens), "segments must cover the batch");
  *workspace.counters = {};
  return {segments, count, workspace.items_begin, units, blocks_per_strip};
}

}  // namespace host

std::string attention_library() { return {}; }
std::string attention_assumption(const AttentionShape& /*shape*/, int64_t /*rows*/) { return {}; }

int64_t attention_workspace_bytes(const AttentionShape& shape, int64_t rows) {
  check_attention_shape(shape);
  const host::AttentionWorkspace w(nullptr, shape, rows);
  return w.shared_bytes + w.share_bytes * host::thread_count();
}

}  // namespace llmtrain
