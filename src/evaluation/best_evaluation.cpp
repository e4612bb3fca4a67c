#include "evaluation/best_evaluation.hpp"

#include <cmath>
#include <string_view>
#include <utility>

namespace llmtrain {

namespace {

bool lowest_is_best(std::string_view metric) { return metric.ends_with("loss") || metric.ends_with("perplexity"); }

/// Counter names of the best values by a metric. (Those of the loss keep their original names.)
struct BestNames {
  explicit BestNames(const std::string& metric) {
    if (metric == "loss") return;
    const std::string sign = lowest_is_best(metric) ? "" : "negative_";
    best = "best_" + sign + metric;
    reference = "early_stopping_" + sign + metric;
  }
  std::string best = "best_validation";
  std::string reference = "early_stopping_reference";
};

}  // namespace

BestEvaluation::BestEvaluation(std::string metric, const EvaluationConfig& config)
    : metric_(std::move(metric)),
      threshold_(config.early_stopping_threshold),
      patience_(config.early_stopping_patience) {
  constexpr std::string_view prefix = "validation/";
  if (metric_.starts_with(prefix)) metric_.erase(0, prefix.size());
}

double BestEvaluation::cost(const EvaluationRecord& record) const {
  constexpr double none = std::numeric_limits<double>::quiet_NaN();
  if (metric_ == "loss") return record.tokens > 0 ? record.loss : none;
  if (metric_ == "token_accuracy") return -record.token_accuracy.value_or(none);
  for (const auto* values : {&record.metrics, &record.scores}) {
    for (const NamedValue& value : *values) {
      if (value.name == metric_) return lowest_is_best(metric_) ? value.value : -value.value;
    }
  }
  return none;
}

bool BestEvaluation::update(const EvaluationRecord& record) {
  const double value = cost(record);
  if (std::isnan(value)) return false;  // this evaluation has no such metric
  const bool best = value < best_;
  if (best) {
    best_ = value;
    step_ = record.step;
  }
  if (value < reference_ - threshold_) {
    reference_ = value;
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

}  // namespace llmtrain
