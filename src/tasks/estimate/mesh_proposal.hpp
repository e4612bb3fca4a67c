#pragma once
// The mesh that --estimate proposes for a new run of a deck.

#include <functional>

#include "config/config.hpp"
#include "tasks/estimate/estimate.hpp"

namespace llmtrain {

/// Compares meshes of context and tensor ranks, ZeRO stages 1 to 3 and levels of recomputation: the fastest that fits,
/// else the one of least memory. `cost_of`: of a deck whose [parallel] and [memory] have been changed.
MeshChoice propose_mesh(const Config& config, int64_t ranks, int64_t ranks_per_node,
                        const std::function<MeshCost(const Config& config)>& cost_of);

}  // namespace llmtrain
