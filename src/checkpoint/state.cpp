#include "checkpoint/state.hpp"

namespace llmtrain {

namespace {

Schema schema_of(const ParamStore& store, bool all) {
  std::vector<UnitSpec> units;
  units.reserve(static_cast<size_t>(store.units().size()));
  for (int u = 0; u < store.units().size(); ++u) {
    if (all || store.units()[u].trained()) units.push_back(store.units()[u].spec);
  }
  return make_schema(units, store.units().options().states, store.units().options().segment_elements);
}

std::vector<ShardBorders> owned_parts(const ParamStore& store, int unit) {
  std::vector<ShardBorders> parts;
  for (size_t segment = 0; segment < store.units()[unit].segments.size(); ++segment) {
    const UnitRange own = store.units().owned(unit, segment);
    parts.push_back({own.begin, own.end});
  }
  return parts;
}

}  // namespace

StoreState::StoreState(ParamStore& store, Stream& stream) : store_(store), stream_(stream) {
  for (int u = 0; u < store.units().size(); ++u) {
    if (store.units()[u].trained()) units_.push_back(u);
  }
}

Schema StoreState::schema() const { return schema_of(store_, false); }

void StoreState::read(int64_t unit, size_t plane, int64_t begin, int64_t count, void* out) const {
  store_.read_state(store_unit(unit), plane, begin, count, out, stream_);
}

std::vector<ShardBorders> StoreState::owned(int64_t unit) const { return owned_parts(store_, store_unit(unit)); }

std::vector<ShardBorders> StoreState::wanted(int64_t unit) const {
  std::vector<ShardBorders> parts;
  for (size_t segment = 0; segment < store_.units()[store_unit(unit)].segments.size(); ++segment) {
    const ParamStore::Shard shard = store_.shard(store_unit(unit), segment);
    parts.push_back({shard.begin, shard.end});
  }
  return parts;
}

void StoreState::write(int64_t unit, size_t plane, int64_t begin, int64_t count, const void* values) {
  store_.write_state(store_unit(unit), plane, begin, count, values, stream_);
}

void StoreState::finish() {
  store_.round_masters();
  store_.publish_weights();
}

Schema StoreParameters::schema() const { return schema_of(store_, true); }

std::vector<ShardBorders> StoreParameters::wanted(int64_t unit) const {
  return owned_parts(store_, static_cast<int>(unit));
}

}  // namespace llmtrain
