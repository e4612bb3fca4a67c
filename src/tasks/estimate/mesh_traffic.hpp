#pragma once
#include <array>
#include <cstdint>

#include "config/config.hpp"
#include "parallel/mesh_shape.hpp"
#include "parallel/traffic.hpp"
#include "params/traffic_model.hpp"
#include "train/training_plan.hpp"

namespace llmtrain {

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

}  // namespace llmtrain
