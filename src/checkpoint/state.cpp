#include "checkpoint/state.hpp"

#include "kernels/elementwise.hpp"

namespace llmtrain {

Schema StoreState::schema() const {
  std::vector<UnitSpec> units;
  units.reserve(static_cast<size_t>(store_.unit_count()));
  for (int u = 0; u < store_.unit_count(); ++u) units.push_back(store_.spec(u));
  return make_schema(units);
}

Tensor StoreState::place(int64_t unit, StateKind kind, int64_t begin, int64_t count) const {
  const ParamStore::Shard shard = store_.shard(static_cast<int>(unit));
  LLMTRAIN_CHECK(begin >= shard.begin && begin + count <= shard.end, "state of another rank");
  const Tensor& all = kind == StateKind::master ? shard.master : kind == StateKind::m ? shard.m : shard.v;
  return all.rows(begin - shard.begin, count);
}

void StoreState::read(int64_t unit, StateKind kind, int64_t begin, int64_t count, float* out) const {
  const Tensor from = place(unit, kind, begin, count);
  copy_to_host(out, from.data, from.bytes(), stream_);
  stream_.synchronize();
}

ShardBorders StoreState::wanted(int64_t unit) const {
  const ParamStore::Shard shard = store_.shard(static_cast<int>(unit));
  return {shard.begin, shard.end};
}

void StoreState::write(int64_t unit, StateKind kind, int64_t begin, int64_t count, const float* values) {
  const Tensor to = place(unit, kind, begin, count);
  copy_to_device(to.data, values, to.bytes(), stream_);
  stream_.synchronize();
}

void StoreState::finish() {
  for (int u = 0; u < store_.unit_count(); ++u) {
    const ParamStore::Shard shard = store_.shard(u);
    if (!shard.weights.empty() && shard.master.numel() > 0) cast(shard.weights, shard.master, stream_);
  }
  store_.publish_weights();
}

ShardBorders StoreParameters::wanted(int64_t unit) const {
  const UnitRange own = store_.owned(static_cast<int>(unit));
  return {own.begin, own.end};
}

}  // namespace llmtrain
