#pragma once
// Work between the steps of a run: evaluations and samples. A request to stop interrupts both; they stay pending and
// run when the run resumes.

#include <cstdint>
#include <functional>

#include "metrics/run_log.hpp"
#include "parallel/job/runtime.hpp"
#include "train/run_progress.hpp"
#include "train/training_plan.hpp"

namespace llmtrain {

/// Collective callback before each unit of work: returns the reason to stop, or 0.
using StopRequested = std::function<int64_t()>;

class RunEvaluation {
 public:
  RunEvaluation(TrainingPlan& plan, RunProgress& progress, Runtime& runtime, RunLog& log,
                const EvaluationConfig& config, uint64_t seed)
      : plan_(plan), progress_(progress), runtime_(runtime), log_(log), config_(config), seed_(seed) {}

  /// Returns the reason to stop, if it was interrupted, else 0. Collective.
  int64_t run(int64_t completed, const StopRequested& stop_requested);

 private:
  TrainingPlan& plan_;
  RunProgress& progress_;
  Runtime& runtime_;
  RunLog& log_;
  EvaluationConfig config_;
  uint64_t seed_;
};

class RunSamples {
 public:
  RunSamples(TrainingPlan& plan, RunProgress& progress, Runtime& runtime, RunLog& log, const LogConfig& config,
             uint64_t seed)
      : plan_(plan), progress_(progress), runtime_(runtime), log_(log), config_(config), seed_(seed) {}

  /// Writes a sample for each prompt. Returns the reason to stop, if it was interrupted, else 0. Collective.
  int64_t run(int64_t completed, const StopRequested& stop_requested);

 private:
  GenerationRequest request(int64_t completed) const;

  TrainingPlan& plan_;
  RunProgress& progress_;
  Runtime& runtime_;
  RunLog& log_;
  LogConfig config_;
  uint64_t seed_;
};

}  // namespace llmtrain
