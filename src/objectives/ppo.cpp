// Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347) over the completions of a rollout. Losses are
// those of TRL 0.24, but all means are over the tokens of completions: TRL's include padding, and one more value.

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "objectives/token_objective.hpp"

namespace llmtrain {

namespace {

/// Metrics under TRL's names.
enum Metric : size_t { total, policy, value, entropy, approximate_kl, clipped, value_clipped, mean_ratio, mismatch };

class Ppo : public TokenObjective {
 public:
  explicit Ppo(const PpoConfig& config) : config_(config) {
    add_metric({"loss", 1});
    add_metric({"losses/policy_avg", 1, "policy"});
    add_metric({"losses/value_avg", 1, "value"});
    add_metric({"policy/entropy_avg", 1, "entropy"});
    add_metric({"policy/approxkl_avg", 1});
    add_metric({"policy/clipfrac_avg", 1});
    add_metric({"val/clipfrac_avg", 1});
    add_metric({"val/ratio", 1});
    add_metric({"rollout/mismatch", 1});
  }

  ObjectiveNeeds needs() const override {
    return {.statistics_first = true, .entropy = true, .value = true, .rollout = true, .documents = true};
  }
  int64_t count(const StepPlan& plan) const override { return plan.trained_tokens; }

  void evaluate(const TokenColumns& tokens, TokenResults& results) const override {
    const RolloutColumns& rollout = *tokens.rollout;
    LLMTRAIN_CHECK(rollout.returns.size() == tokens.logp.size() && rollout.old_values.size() == tokens.logp.size(),
                   "a return and an old value for every token");
    for (size_t row = 0; row < tokens.weights.size(); ++row) {
      if (tokens.weights[row] > 0) evaluate_row(tokens, row, results);
    }
  }

 private:
  static void add(TokenResults& results, size_t metric, double value) {
    results.values[metric].push_back(static_cast<float>(value));
  }

  void evaluate_row(const TokenColumns& tokens, size_t row, TokenResults& results) const {
    const RolloutColumns& rollout = *tokens.rollout;
    const double difference = static_cast<double>(tokens.logp[row]) - rollout.old_logp[row];
    const double advantage = rollout.advantages[row];
    const ClippedObjective one = clipped_objective(difference, advantage, config_.clip, config_.clip);
    results.logp[row] = static_cast<float>(-one.slope);
    results.entropy[row] = static_cast<float>(-config_.entropy_coefficient);

    const double v = tokens.value[row], old = rollout.old_values[row], target = rollout.returns[row];
    const double held = std::clamp(v, old - config_.value_clip, old + config_.value_clip);
    const double free_error = (v - target) * (v - target), held_error = (held - target) * (held - target);
    const bool holds = held_error > free_error;
    results.value[row] = static_cast<float>(holds ? 0 : config_.value_coefficient * (v - target));

    const double value_loss = std::max(free_error, held_error) / 2;
    const double bonus = config_.entropy_coefficient * static_cast<double>(tokens.entropy[row]);
    add(results, total, config_.value_coefficient * value_loss - one.value - bonus);
    add(results, policy, -one.value);
    add(results, value, value_loss);
    add(results, entropy, tokens.entropy[row]);
    add(results, approximate_kl, difference * difference / 2);
    add(results, clipped, one.value < one.ratio * advantage ? 1 : 0);
    add(results, value_clipped, holds ? 1 : 0);
    add(results, mean_ratio, one.ratio);
    add(results, mismatch, std::abs(difference));
  }

  PpoConfig config_;
};

}  // namespace

std::unique_ptr<Objective> make_ppo(const PpoConfig& config) { return std::make_unique<Ppo>(config); }

}  // namespace llmtrain
