#include "params/reduction/reduction_advice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/arena.hpp"
#include "core/number_text.hpp"
#include "params/reduction/gradient_reducer.hpp"

namespace llmtrain {

namespace {

struct Cost {
  int64_t port_bytes = 0;
  int64_t memory = 0;  ///< of gradients and their exchange, on a rank
};

Cost cost_of(const std::vector<UnitSpec>& specs, const ParamStoreOptions& options, int64_t ranks_per_node,
             Transport transport) {
  const UnitStates units(specs, options);
  UnitGathers gathers(units);
  GradientReducer reducer(units, gathers);
  Arena arena;
  reducer.plan(arena);
  return {predict_traffic(units, ranks_per_node, transport).port_bytes, arena.bytes()};
}

std::string text_of(int64_t bytes) { return bytes_text(static_cast<double>(bytes)); }

}  // namespace

std::string reduction_advice(const UnitStates& units, const ReductionGroups& groups, int64_t ranks_per_node,
                             Transport transport) {
  const ParamStoreOptions& now = units.options();
  if (now.size == 1 || !units.any_trained() || now.groups != groups.count) return {};  // blocks of rows are as they are
  ParamStoreOptions then = now;
  then.groups = std::min<int64_t>(now.size, groups.micro_batches);
  then.blocks = 1;
  then.micro_batches_per_group = ReductionGroups(groups.micro_batches, then.groups).max_size();
  if (ranks_per_node < now.size) then.reduction = Reduction::tree;
  std::vector<UnitSpec> specs;
  for (const UnitState& u : units) specs.push_back(u.spec);
  const Cost cost = cost_of(specs, now, ranks_per_node, transport),
             other = cost_of(specs, then, ranks_per_node, transport);
  const std::string choice =
      fmt::format("a new run with {}parallel.reduction_groups = {}",
                  then.reduction == now.reduction ? "" : "parallel.reduction = tree and ", then.groups);
  if (cost.port_bytes >= 2 * other.port_bytes && cost.port_bytes > 0) {
    return fmt::format("{} reduction groups: a step moves {} through the port of a node; {} would move {}", now.groups,
                       text_of(cost.port_bytes), choice, text_of(other.port_bytes));
  }
  if (cost.memory >= 2 * other.memory) {
    return fmt::format("{} reduction groups: a rank keeps {} of gradients; {} would keep {}", now.groups,
                       text_of(cost.memory), choice, text_of(other.memory));
  }
  return {};
}

}  // namespace llmtrain
