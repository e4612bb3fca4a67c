#include "checkpoint/state.hpp"

namespace llmtrain {

namespace {

Schema schema_of(const ParamStore& store, bool all) {
  std::vector<UnitSpec> units;
  units.reserve(static_cast<size_t>(store.unit_count()));
  for (int u = 0; u < store.unit_count(); ++u) {
    if (all || store.trained(u)) units.push_back(store.spec(u));
  }
  return make_schema(units, store.states());
}

}  // namespace

StoreState::StoreState(ParamStore& store, Stream& stream) : store_(store), stream_(stream) {
  for (int u = 0; u < store.unit_count(); ++u) {
    if (store.trained(u)) units_.push_back(u);
  }
}

Schema StoreState::schema() const { return schema_of(store_, false); }

void StoreState::read(int64_t unit, size_t plane, int64_t begin, int64_t count, void* out) const {
  store_.read_state(store_unit(unit), plane, begin, count, out, stream_);
}

ShardBorders StoreState::wanted(int64_t unit) const {
  const ParamStore::Shard shard = store_.shard(store_unit(unit));
  return {shard.begin, shard.end};
}

void StoreState::write(int64_t unit, size_t plane, int64_t begin, int64_t count, const void* values) {
  store_.write_state(store_unit(unit), plane, begin, count, values, stream_);
}

void StoreState::finish() {
  store_.round_masters();
  store_.publish_weights();
}

Schema StoreParameters::schema() const { return schema_of(store_, true); }

ShardBorders StoreParameters::wanted(int64_t unit) const {
  const UnitRange own = store_.owned(static_cast<int>(unit));
  return {own.begin, own.end};
}

}  // namespace llmtrain
