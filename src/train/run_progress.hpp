#pragma once
// State of a run beside its parameters, as checkpoints store it: best evaluation, pending work, divergence, loss scale.

#include <cstdint>
#include <limits>
#include <string>

#include "checkpoint/manifest.hpp"
#include "config/checkpoint_config.hpp"
#include "evaluation/evaluation_config.hpp"
#include "metrics/run_log.hpp"
#include "optim/loss_scale.hpp"
#include "parallel/job/runtime.hpp"
#include "train/divergence.hpp"
#include "train/training_plan.hpp"

namespace llmtrain {

/// The best evaluation so far, and early stopping.
class BestEvaluation {
 public:
  /// `metric`: as in checkpoint.best_metric.
  BestEvaluation(std::string metric, const EvaluationConfig& config);

  /// Returns true if the record is the best so far.
  bool update(const EvaluationRecord& record);
  int64_t step() const { return step_; }  ///< step of the best evaluation; -1: none
  int64_t without_improvement() const { return without_improvement_; }
  /// True if early stopping ends the run.
  bool stops() const { return patience_ > 0 && without_improvement_ >= patience_; }

  void save(RunState& state) const;
  /// `own`: true if the state is of this run, so that its best evaluation counts. Returns true if the state is about
  /// the same metric.
  bool restore(const RunState& state, bool own);

 private:
  /// The metric as a value of which the lowest is best; NaN if the record lacks it.
  double cost(const EvaluationRecord& record) const;

  std::string metric_;  ///< without validation/
  double threshold_;
  int64_t patience_;
  double best_ = std::numeric_limits<double>::infinity();       ///< lower is better
  double reference_ = std::numeric_limits<double>::infinity();  ///< the value early stopping compares with
  int64_t step_ = -1;
  int64_t without_improvement_ = 0;
};

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
};

/// Sets `field` to the value of this name, if there is one.
template <class Map, class T>
void take(const Map& from, const std::string& name, T& field) {
  if (const auto found = from.find(name); found != from.end()) field = found->second;
}

}  // namespace llmtrain
