#include "models/router_bias.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

namespace llmtrain {

namespace {

void move_bias(ParamStore& params, const ParamRef& bias, std::span<const int64_t> pairs, double rate, Stream& stream) {
  const UnitState& unit = params.units()[bias.unit];
  const int64_t offset = unit.layout.offset(bias.param);
  const int64_t all = std::accumulate(pairs.begin(), pairs.end(), int64_t{0});
  for (size_t segment = 0; segment < unit.segments.size(); ++segment) {
    const ParamStore::Shard shard = params.shard(bias.unit, segment);
    const int64_t begin = std::max(offset, shard.begin), end = std::min(offset + std::ssize(pairs), shard.end);
    if (begin >= end) continue;
    std::vector<float> values(static_cast<size_t>(end - begin));
    params.read_state(bias.unit, master_plane, begin, end - begin, values.data(), stream);
    for (size_t i = 0; i < values.size(); ++i) {
      const int64_t own = pairs[static_cast<size_t>(begin - offset) + i] * std::ssize(pairs);
      const int direction = own < all ? 1 : own > all ? -1 : 0;
      values[i] = static_cast<float>(double{values[i]} + direction * rate);
    }
    params.write_state(bias.unit, master_plane, begin, end - begin, values.data(), stream);
  }
}

}  // namespace

void move_router_biases(ParamStore& params, std::span<const ParamRef> biases, std::span<const int64_t> pairs,
                        double rate, Stream& stream) {
  if (biases.empty()) return;
  LLMTRAIN_CHECK(pairs.size() % biases.size() == 0, "each layer has as many experts");
  const size_t experts = pairs.size() / biases.size();
  params.begin_change();
  for (size_t layer = 0; layer < biases.size(); ++layer) {
    if (!biases[layer].is_trained()) continue;
    move_bias(params, biases[layer], pairs.subspan(layer * experts, experts), rate, stream);
  }
}

}  // namespace llmtrain
