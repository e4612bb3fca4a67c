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

std::vector<UnitSpec> specs_of(const UnitStates& units) {
  std::vector<UnitSpec> specs;
  for (const UnitState& u : units) specs.push_back(u.spec);
  return specs;
}

std::string text_of(int64_t bytes) { return bytes_text(static_cast<double>(bytes)); }

/// Ranks that share rows exchange the gradients of each micro-batch: fewer and larger ones cost less.
std::string advice_for_rows(const UnitStates& units, const ReductionGroups& groups, int64_t ranks_per_node,
                            Transport transport) {
  const ParamStoreOptions& now = units.options();
  ParamStoreOptions then = now;
  then.groups = std::min<int64_t>(now.groups, now.size * now.groups_at_once);  // a micro-batch of each
  const int64_t blocks = now.groups / groups.count, micro_batches = then.groups / blocks;
  if (then.groups == now.groups || micro_batches == 0) return {};
  const std::vector<UnitSpec> specs = specs_of(units);
  const int64_t bytes = cost_of(specs, now, ranks_per_node, transport).port_bytes,
                others = cost_of(specs, then, ranks_per_node, transport).port_bytes;
  if (bytes == 0 || bytes < 2 * others) return {};
  return fmt::format(
      "{} micro-batches whose rows ranks share: a step moves {} through the port of a node; a new run with "
      "{}{} of them (batch.micro) would move {}",
      groups.count, text_of(bytes), then.reduction == now.reduction ? "" : "parallel.reduction = tree and ",
      micro_batches, text_of(others));
}

}  // namespace

std::string reduction_advice(const UnitStates& units, const ReductionGroups& groups, int64_t ranks_per_node,
                             Transport transport) {
  const ParamStoreOptions& now = units.options();
  if (now.size == 1 || !units.any_trained() || now.shares_experts()) return {};
  if (now.groups_in_turn) return advice_for_rows(units, groups, ranks_per_node, transport);
  ParamStoreOptions then = now;
  then.groups = std::min<int64_t>(now.size, groups.micro_batches);
  then.blocks = 1;
  then.micro_batches_per_group = ReductionGroups(groups.micro_batches, then.groups).max_size();
  if (ranks_per_node < now.size) then.reduction = Reduction::tree;
  const std::vector<UnitSpec> specs = specs_of(units);
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
