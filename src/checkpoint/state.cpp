#include "checkpoint/state.hpp"

#include <algorithm>

#include "params/tensor_blocks.hpp"

namespace llmtrain {

namespace {

Schema schema_of(const ParamStore& store, bool all) {
  const ParamStoreOptions& options = store.units().options();
  std::vector<UnitSpec> units = store.units().model_units();
  std::erase_if(units, [&](const UnitSpec& unit) { return !all && !unit.trained; });
  Schema schema = make_schema(units, options.states, options.segment_elements);
  schema.tensor_blocks = count_blocks(store.units().model_units(), &UnitSpec::tensor_block);
  schema.expert_blocks = count_blocks(store.units().model_units(), &UnitSpec::expert_block);
  return schema;
}

}  // namespace

StoreState::StoreState(ParamStore& store, Stream& stream) : store_(store), stream_(stream) {
  const std::vector<UnitSpec>& units = store.units().model_units();
  for (int64_t u = 0; u < std::ssize(units); ++u) {
    if (units[static_cast<size_t>(u)].trained) units_.push_back(store.units().store_unit(u));
  }
}

Schema StoreState::schema() const { return schema_of(store_, false); }

void StoreState::read(int64_t unit, size_t plane, int64_t begin, int64_t count, void* out) const {
  store_.read_state(store_unit(unit), plane, begin, count, out, stream_);
}

std::vector<ShardBorders> StoreState::owned(int64_t unit) const {
  std::vector<ShardBorders> parts;
  if (store_unit(unit) < 0) return parts;
  for (size_t segment = 0; segment < store_.units()[store_unit(unit)].segments.size(); ++segment) {
    const UnitRange own = store_.units().counted(store_unit(unit), segment);
    parts.push_back({own.begin, own.end});
  }
  return parts;
}

std::vector<ShardBorders> StoreState::wanted(int64_t unit) const {
  std::vector<ShardBorders> parts;
  if (store_unit(unit) < 0) return parts;
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
  std::vector<ShardBorders> parts;
  const int own_unit = store_.units().store_unit(unit);
  if (own_unit < 0) return parts;
  for (size_t segment = 0; segment < store_.units()[own_unit].segments.size(); ++segment) {
    const UnitRange own = store_.units().owned(own_unit, segment);
    parts.push_back({own.begin, own.end});
  }
  return parts;
}

}  // namespace llmtrain
