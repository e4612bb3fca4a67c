#pragma once
// State of a run beside its parameters, as checkpoints store it: best evaluation, pending work, divergence, loss scale.

#include "checkpoint/manifest.hpp"
#include "evaluation/best_evaluation.hpp"
#include "metrics/run_log.hpp"
#include "optim/loss_scale.hpp"
#include "parallel/job/runtime.hpp"
#include "train/divergence.hpp"
#include "train/training_plan.hpp"

namespace llmtrain {

struct RunProgress {
  DivergenceGuard guard;
  LossScaler scaler;
  BestEvaluation best;
  /// Work of the current step that is pending. Checkpoints store it, since a job may be stopped before its end.
  struct Pending {
    bool evaluation = false, samples = false;
  } pending = {};

  void save(RunState& state) const;
  bool restore(const RunState& state, bool own);
};

/// The objects that all parts of a training loop work on.
struct RunContext {
  TrainingPlan& plan;
  RunProgress& progress;
  Runtime& runtime;
  RunLog& log;
  SharedRows& rows;
};

}  // namespace llmtrain
