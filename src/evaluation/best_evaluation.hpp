#pragma once
// The best evaluation of a run, and early stopping.

#include <cstdint>
#include <limits>
#include <string>

#include "checkpoint/manifest.hpp"
#include "evaluation/evaluation_config.hpp"
#include "metrics/run_log.hpp"

namespace llmtrain {

/// The best evaluation so far by checkpoint.best_metric, and whether early stopping ends the run.
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

/// Sets `field` to the value of this name, if there is one.
template <class Map, class T>
void take(const Map& from, const std::string& name, T& field) {
  if (const auto found = from.find(name); found != from.end()) field = found->second;
}

}  // namespace llmtrain
