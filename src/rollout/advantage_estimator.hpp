#pragma once
// Advantages, and targets of a critic, from the rewards of a rollout.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/stream/batch_source.hpp"
#include "objectives/grpo_config.hpp"
#include "objectives/ppo_config.hpp"
#include "rollout/batches.hpp"

namespace llmtrain {

class AdvantageEstimator {
 public:
  virtual ~AdvantageEstimator() = default;
  virtual std::vector<SourceMetric> metrics() const = 0;
  /// Fills advantages and returns of all sequences of an iteration, in canonical order, and returns the metrics. Every
  /// rank computes the same.
  virtual std::vector<double> estimate(std::span<RolloutSequence> sequences) = 0;
  /// Numbers that an iteration hands to the next one; checkpoints store them.
  virtual std::vector<double> state() const { return {}; }
  virtual void restore(std::span<const double> /*state*/) {}
};

/// Rewards relative to those of the other completions of a prompt, which follow one another.
std::unique_ptr<AdvantageEstimator> make_group_estimator(const GrpoConfig& config);
/// Generalised advantage estimation with a critic, and rewards for staying near the reference.
std::unique_ptr<AdvantageEstimator> make_ppo_estimator(const PpoConfig& config);

}  // namespace llmtrain
