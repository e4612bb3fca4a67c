#include "train/run_progress.hpp"

#include "train/run/resume.hpp"

namespace llmtrain {

namespace {

/// Counter names of the best values by a metric. (Those of the loss keep their original names.)
struct BestNames {
  explicit BestNames(CheckpointConfig::Metric metric) {
    if (metric == CheckpointConfig::Metric::loss) return;
    best = "best_negative_token_accuracy";
    reference = "early_stopping_negative_token_accuracy";
  }
  const char* best = "best_validation";
  const char* reference = "early_stopping_reference";
};

}  // namespace

BestEvaluation::BestEvaluation(CheckpointConfig::Metric metric, const EvaluationConfig& config)
    : metric_(metric), threshold_(config.early_stopping_threshold), patience_(config.early_stopping_patience) {}

bool BestEvaluation::update(const EvaluationRecord& record) {
  const double cost = record.token_accuracy ? -*record.token_accuracy : record.loss;
  const bool best = cost < best_;
  if (best) {
    best_ = cost;
    step_ = record.step;
  }
  if (cost < reference_ - threshold_) {
    reference_ = cost;
    without_improvement_ = 0;
  } else {
    ++without_improvement_;
  }
  return best;
}

void BestEvaluation::save(RunState& state) const {
  const BestNames names(metric_);
  state.counters["without_improvement"] = without_improvement_;
  if (step_ >= 0) state.counters["best_step"] = step_;
  state.values[names.best] = best_;
  state.values[names.reference] = reference_;
}

bool BestEvaluation::restore(const RunState& state, bool own) {
  best_ = reference_ = std::numeric_limits<double>::infinity();
  step_ = -1;
  without_improvement_ = 0;
  const BestNames names(metric_);
  const bool same_metric = state.values.contains(names.best);
  if (own) take(state.values, names.best, best_);
  take(state.values, names.reference, reference_);
  if (same_metric) take(state.counters, "without_improvement", without_improvement_);
  if (own && same_metric) take(state.counters, "best_step", step_);
  return same_metric;
}

void RunProgress::save(RunState& state) const {
  best.save(state);
  if (pending.evaluation) state.counters[pending_evaluation] = 1;
  if (pending.samples) state.counters[pending_samples] = 1;
  guard.save(state);
  if (!scaler.active()) return;
  const LossScaleState& scaling = scaler.state();
  state.values["loss_scale"] = scaling.scale;
  state.counters["loss_scale_clean_steps"] = scaling.clean_steps;
  state.counters["loss_scale_overflows_left"] = scaling.overflows_left;
  state.counters["skipped_steps"] = scaling.skipped_steps;
}

bool RunProgress::restore(const RunState& state, bool own) {
  const bool same_metric = best.restore(state, own);
  pending = {is_pending(state, pending_evaluation), is_pending(state, pending_samples)};
  guard.restore(state, own);
  if (state.values.contains("loss_scale")) {
    LossScaleState scaling;
    take(state.values, "loss_scale", scaling.scale);
    take(state.counters, "loss_scale_clean_steps", scaling.clean_steps);
    take(state.counters, "loss_scale_overflows_left", scaling.overflows_left);
    take(state.counters, "skipped_steps", scaling.skipped_steps);
    scaler.restore(scaling);
  }
  return same_metric;
}

}  // namespace llmtrain
