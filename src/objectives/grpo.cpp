// Group-relative policy optimisation (Shao et al. 2024, arXiv:2402.03300) and its relatives, over the completions of a
// rollout: dr_grpo (Liu et al. 2025, arXiv:2503.20783), dapo (Yu et al. 2025, arXiv:2503.14476) and rloo (Ahmadian et
// al. 2024, arXiv:2402.14740). Losses are those of TRL 1.16, with divisors of the whole step.

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "objectives/token_objective.hpp"

namespace llmtrain {

namespace {

using Loss = GrpoConfig::Loss;

/// The divergence from the reference in nats, and its derivative with respect to the policy's log-probability.
struct Divergence {
  double value = 0, slope = 0;
};

/// The estimator k3 (Schulman 2020).
Divergence k3(double logp, double reference) {
  const double difference = reference - logp, ratio = std::exp(difference);
  return {std::expm1(difference) - difference, 1 - ratio};
}

class Grpo : public TokenObjective {
 public:
  /// Metrics under TRL's names. Means over tokens are divided by the number of tokens, rloo's clip ratios by that of
  /// the sequences.
  explicit Grpo(const GrpoConfig& config) : config_(config) {
    const bool by_token = counts_tokens();
    loss_ = add_metric({"loss", 1});
    if (!by_token) length_ = add_metric({"tokens_per_sequence", 1});
    const int tokens = by_token ? -1 : static_cast<int>(length_);
    const int ratios = config.loss == Loss::rloo ? -1 : tokens;
    if (config.beta > 0) kl_ = add_metric({"kl", 1, "kl", tokens});
    entropy_ = add_metric({"entropy", 1, "entropy", tokens});
    low_ = add_metric({"clip_ratio/low_mean", 1, {}, ratios});
    high_ = add_metric({"clip_ratio/high_mean", 1, {}, ratios});
    region_ = add_metric({"clip_ratio/region_mean", 1, {}, ratios});
    mismatch_ = add_metric({"rollout/mismatch", 1, {}, tokens});
  }

  ObjectiveNeeds needs() const override {
    return {.statistics_first = true, .entropy = true, .rollout = true, .documents = true};
  }
  int64_t count(const StepPlan& plan) const override {
    return counts_tokens() ? plan.trained_tokens : static_cast<int64_t>(plan.samples.size());
  }

  void evaluate(const TokenColumns& tokens, TokenResults& results) const override {
    LLMTRAIN_CHECK(config_.beta == 0 || tokens.rollout->reference_logp.size() == tokens.logp.size(),
                   "a reference for every token");
    for (size_t segment = 0; segment + 1 < tokens.segments.size(); ++segment) {
      const std::vector<size_t> rows = trained_rows(tokens, segment);
      if (rows.empty()) continue;
      if (config_.loss == Loss::rloo) {
        evaluate_sequence(tokens, rows, results);
      } else {
        evaluate_tokens(tokens, rows, results);
      }
      add_statistics(tokens, rows, results);
    }
  }

 private:
  bool counts_tokens() const { return config_.loss == Loss::bnpo || config_.loss == Loss::dapo; }

  /// Divisor of a sequence's sum over tokens, beside the step's count.
  double divisor(size_t length, int64_t longest) const {
    if (config_.loss == Loss::grpo) return static_cast<double>(length);
    return config_.loss == Loss::dr_grpo ? static_cast<double>(longest) : 1;
  }

  static void add(TokenResults& results, size_t metric, double value) {
    results.values[metric].push_back(static_cast<float>(value));
  }

  void add_clips(TokenResults& results, double ratio, double advantage) const {
    const bool low = ratio < 1 - config_.epsilon && advantage < 0;
    const bool high = ratio > 1 + config_.upper() && advantage > 0;
    add(results, low_, low ? 1 : 0);
    add(results, high_, high ? 1 : 0);
    add(results, region_, low || high ? 1 : 0);
  }

  /// A ratio for each token.
  void evaluate_tokens(const TokenColumns& tokens, std::span<const size_t> rows, TokenResults& results) const {
    const RolloutColumns& rollout = *tokens.rollout;
    const double divided = divisor(rows.size(), rollout.longest);
    double sum = 0;
    for (const size_t row : rows) {
      const double logp = tokens.logp[row], advantage = rollout.advantages[row];
      const ClippedObjective one = clipped_objective(logp - static_cast<double>(rollout.old_logp[row]), advantage,
                                                     config_.epsilon, config_.upper(), config_.delta);
      const Divergence kl = config_.beta > 0 ? k3(logp, rollout.reference_logp[row]) : Divergence{};
      if (config_.beta > 0) add(results, kl_, kl.value);
      sum += config_.beta * kl.value - one.value;
      results.logp[row] = static_cast<float>((config_.beta * kl.slope - one.slope) / divided);
      add_clips(results, one.ratio, advantage);
    }
    add(results, loss_, sum / divided);
  }

  /// A ratio for the sequence, as TRL's RLOOTrainer; the divergence from the reference is part of the rewards.
  void evaluate_sequence(const TokenColumns& tokens, std::span<const size_t> rows, TokenResults& results) const {
    const RolloutColumns& rollout = *tokens.rollout;
    double log_ratio = 0;
    for (const size_t row : rows) {
      const double logp = tokens.logp[row];
      log_ratio += logp - static_cast<double>(rollout.old_logp[row]);
      if (config_.beta > 0) add(results, kl_, logp - static_cast<double>(rollout.reference_logp[row]));
    }
    const double advantage = rollout.advantages[rows.front()];
    const ClippedObjective one = clipped_objective(log_ratio, advantage, config_.epsilon, config_.upper());
    for (const size_t row : rows) results.logp[row] = static_cast<float>(-one.slope);
    add_clips(results, one.ratio, advantage);
    add(results, loss_, -one.value);
  }

  void add_statistics(const TokenColumns& tokens, std::span<const size_t> rows, TokenResults& results) const {
    if (!counts_tokens()) add(results, length_, static_cast<double>(rows.size()));
    for (const size_t row : rows) {
      add(results, entropy_, tokens.entropy[row]);
      add(results, mismatch_, std::abs(static_cast<double>(tokens.logp[row]) - tokens.rollout->old_logp[row]));
    }
  }

  GrpoConfig config_;
  // Numbers of the metrics.
  size_t loss_ = 0, length_ = 0, kl_ = 0, entropy_ = 0, low_ = 0, high_ = 0, region_ = 0, mismatch_ = 0;
};

}  // namespace

std::unique_ptr<Objective> make_grpo(const GrpoConfig& config) { return std::make_unique<Grpo>(config); }

}  // namespace llmtrain
