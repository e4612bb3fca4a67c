#pragma once
#include <string>

#include "params/reduction/reduction_groups.hpp"
#include "params/traffic_model.hpp"

namespace llmtrain {

/// Tells the user what a new run with as many reduction groups as ranks (along the tree, on several nodes) would save.
/// Empty unless it would halve the bytes through a node's port, or a rank's memory of gradients. `ranks_per_node` and
/// `transport` as for predict_traffic().
std::string reduction_advice(const UnitStates& units, const ReductionGroups& groups, int64_t ranks_per_node,
                             Transport transport);

}  // namespace llmtrain
