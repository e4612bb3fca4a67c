#pragma once
// --estimate: memory, traffic and time of a job before it runs, and the mesh that it proposes for a new run of a deck.

#include <array>
#include <cstdint>
#include <functional>

#include "config/config.hpp"
#include "parallel/mesh_shape.hpp"
#include "parallel/traffic.hpp"
#include "params/traffic_model.hpp"
#include "tasks/command_line.hpp"
#include "tasks/estimate/estimate.hpp"
#include "tasks/tasks.hpp"
#include "train/training_plan.hpp"

namespace llmtrain {

/// --estimate: prints the memory of a rank and of a node, and with --measure the time of the run. Collective; returns
/// the exit code.
int run_estimation(const CommandLine& command, Job& job);

/// Predicted traffic of a full step: of all axes, and of each one if ranks share micro-batches.
struct MeshTraffic {
  StepTraffic all;
  std::array<StepTraffic, traffic_axes.size()> axes = {};
};

/// `plan`: of any rank of the mesh. Micro-batches count as full ones.
MeshTraffic predict_mesh_traffic(const Config& config, const TrainingPlan& plan, const PlannedMesh& mesh,
                                 int64_t ranks_per_node, Transport transport);

/// Number of micro-batches that the ranks with most of them compute one after the other in a step.
int64_t passes_of(const ParamStoreOptions& options);

/// Compares meshes of context and tensor ranks, ZeRO stages 1 to 3 and levels of recomputation: the fastest that fits,
/// else the one of least memory. `cost_of`: of a deck whose [parallel] and [memory] have been changed.
MeshChoice propose_mesh(const Config& config, int64_t ranks, int64_t ranks_per_node,
                        const std::function<MeshCost(const Config& config)>& cost_of);

}  // namespace llmtrain
