#pragma once
#include "metrics/run_log.hpp"
#include "parallel/job/runtime.hpp"
#include "train/run_progress.hpp"
#include "train/training_plan.hpp"

namespace llmtrain {

/// The objects that all parts of a training loop work on.
struct RunContext {
  TrainingPlan& plan;
  RunProgress& progress;
  Runtime& runtime;
  RunLog& log;
};

}  // namespace llmtrain
