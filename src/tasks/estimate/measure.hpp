#pragma once
#include "parallel/job/runtime.hpp"
#include "tasks/estimate/estimate.hpp"
#include "train/training_loop.hpp"

namespace llmtrain {

/// Allocates the plan, and predicts the time of the run from a few steps and batches with random weights. Writes
/// nothing. Collective; instead of a TrainingLoop.
Prediction measure_steps(const TrainingOptions& options, TrainingPlan& plan, Runtime& runtime, const Mesh& mesh);

}  // namespace llmtrain
