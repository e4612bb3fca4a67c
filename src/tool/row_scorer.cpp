#include "tool/row_scorer.hpp"

#include <algorithm>

namespace llmtrain {

HostBatch RowScorer::batch_of(const std::vector<int32_t>& ids) {
  HostBatch host;
  const size_t n = ids.size();
  host.ids = ids;
  host.targets.assign(n, ignore_target);
  host.loss_weights.assign(n, 0.0F);
  host.sequence_ids.assign(n, 0);
  for (size_t i = 0; i < n; ++i) host.positions.push_back(static_cast<int32_t>(i));
  host.sequence_offsets = host.positions;
  host.segments = {0, static_cast<int32_t>(n)};
  return host;
}

std::vector<float> RowScorer::score(const HostBatch& row, ProductRole role) {
  if (needs_room(std::ssize(row.ids))) {
    batch_.emplace();
    loaded_.start([&](Arena& arena) { plan(arena); });
  }
  Context ctx = loaded_.context();
  ctx.role = role;
  const Batch batch = batch_->upload(row, ctx.stream);
  const TokenStatistics statistics{first_rows(values_, batch.tokens), {}, {}, {}};
  loaded_.model().forward(ctx, &batch);
  loaded_.model().score(ctx, &batch, statistics);
  std::vector<float> values(row.ids.size() * static_cast<size_t>(loaded_.config().outputs()));
  copy_to_host(values.data(), values_.data, static_cast<int64_t>(values.size() * sizeof(float)), ctx.stream);
  ctx.stream.synchronize();
  return values;
}

bool RowScorer::needs_room(int64_t tokens) {
  if (tokens <= room_) return false;
  room_ = std::min(std::max({tokens, 2 * room_, int64_t{256}}), std::max(tokens, loaded_.config().longest_sequence()));
  return true;
}

void RowScorer::print_estimate() {
  batch_.emplace();
  loaded_.print_estimate([&](Arena& arena) { plan(arena); });
}

void RowScorer::plan(Arena& arena) {
  loaded_.model().plan(arena, {loaded_.compute(), room_, false});
  batch_->plan(arena, room_, 1);
  const int64_t outputs = loaded_.config().outputs();
  constexpr MemoryCategory category = MemoryCategory::activations;
  outputs > 1 ? arena.add(values_, category, "logp", DType::f32, {room_, outputs})
              : arena.add(values_, category, "logp", DType::f32, {room_});
}

}  // namespace llmtrain
