#include "checkpoint/state.hpp"

namespace llmtrain {

Schema StoreState::schema() const {
  std::vector<UnitSpec> units;
  units.reserve(static_cast<size_t>(store_.unit_count()));
  for (int u = 0; u < store_.unit_count(); ++u) units.push_back(store_.spec(u));
  return make_schema(units);
}

void StoreState::read(int64_t unit, StateKind kind, int64_t begin, int64_t count, float* out) const {
  store_.read_state(static_cast<int>(unit), kind, begin, count, out, stream_);
}

ShardBorders StoreState::wanted(int64_t unit) const {
  const ParamStore::Shard shard = store_.shard(static_cast<int>(unit));
  return {shard.begin, shard.end};
}

void StoreState::write(int64_t unit, StateKind kind, int64_t begin, int64_t count, const float* values) {
  store_.write_state(static_cast<int>(unit), kind, begin, count, values, stream_);
}

void StoreState::finish() {
  store_.round_masters();
  store_.publish_weights();
}

ShardBorders StoreParameters::wanted(int64_t unit) const {
  const UnitRange own = store_.owned(static_cast<int>(unit));
  return {own.begin, own.end};
}

}  // namespace llmtrain
