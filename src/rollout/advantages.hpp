#pragma once
// Advantages of the completions of a rollout: functions of the whole global batch in canonical order, in double
// precision and with sums in this order, so that they do not depend on ranks.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "data/stream/batch_source.hpp"
#include "objectives/grpo_config.hpp"
#include "objectives/ppo_config.hpp"
#include "rollout/batches.hpp"

namespace llmtrain {

/// Advantages of completions for grpo and its relatives; rewards of a group follow one another. A reward above the
/// group's mean is an advantage, which scale_rewards may divide by a standard deviation (Bessel's) + 1e-4. With rloo it
/// is a reward above the mean of the others in the group. A completion whose reward is NaN has no part in means, and
/// the advantage 0.
std::vector<double> completion_advantages(const GrpoConfig& config, std::span<const double> rewards);

/// Tokens of completions, one after another: those of completion c are [offsets[c], offsets[c + 1]).
struct CompletionTokens {
  std::span<const int64_t> offsets;  ///< [completions + 1]
  std::span<const float> logp;       ///< log-probabilities under the policy, nats [tokens]
  std::span<const float> reference;  ///< the same under the reference model; empty: no divergence
};

/// Subtracts beta times a completion's divergence from the reference, the sum of k1, from its reward (rloo).
void subtract_divergence(std::span<double> rewards, double beta, const CompletionTokens& tokens);

/// A rollout as PPO sees it.
struct PpoRollout {
  CompletionTokens tokens;
  std::span<const float> values;      ///< of the critic before each token [tokens]
  std::span<const double> scores;     ///< of the reward model [completions]
  std::span<const uint8_t> finished;  ///< 1 for a completion that ends by itself [completions]
};

/// Columns for PPO's updates, and what is reported about a rollout, in TRL's terms: means over completions.
struct PpoAdvantages {
  std::vector<float> advantages, returns;  ///< [tokens]
  double kl = 0;                           ///< nats
  double entropy = 0;                      ///< sum of -logp, nats
  double non_score_reward = 0;             ///< sum of the rewards for staying near the reference
  double score = 0;                        ///< after scale, clip and penalty
  double rlhf_reward() const { return non_score_reward + score; }
};

/// `kl_coefficient`: the current one. The score is part of the last token's reward.
PpoAdvantages ppo_advantages(const PpoConfig& config, double kl_coefficient, const PpoRollout& rollout);

/// Divides by the standard deviation (Bessel's, 1e-8 added to the variance), and moves the mean to 0 or keeps it. Fewer
/// than two numbers stay as they are.
void whiten(std::span<double> x, bool moves_mean);

/// Generalised advantage estimation (Schulman et al. 2015, arXiv:1506.02438, eq. 16) of one completion; the value after
/// its end is 0.
void generalized_advantages(std::span<double> advantages, std::span<const double> rewards,
                            std::span<const float> values, double gamma, double lambda);

/// Coefficient of a divergence that is kept near a target (Ziegler et al. 2019, arXiv:1909.08593, section 2.2). It is
/// multiplied by 1 + error * completions / 10,000, where error is the relative one, within 0.2.
double adapted_kl_coefficient(double coefficient, double target, double kl, int64_t completions);

/// Makes advantages, and targets of a critic, from the rewards of a rollout.
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
