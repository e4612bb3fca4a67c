#include "rollout/advantage_estimator.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <ranges>

#include "rollout/advantages.hpp"

namespace llmtrain {

namespace {

/// Columns of all sequences, one after another.
struct FlatColumns {
  std::vector<int64_t> offsets = {0};
  std::vector<float> logp, reference, values;

  explicit FlatColumns(const std::ranges::forward_range auto& sequences) {
    for (const RolloutSequence& sequence : sequences) {
      offsets.push_back(offsets.back() + sequence.completion_length());
      logp.insert(logp.end(), sequence.logp.begin(), sequence.logp.end());
      reference.insert(reference.end(), sequence.reference_logp.begin(), sequence.reference_logp.end());
      values.insert(values.end(), sequence.values.begin(), sequence.values.end());
    }
  }
  CompletionTokens tokens() const { return {offsets, logp, reference}; }
};

class GroupMethod : public AdvantageEstimator {
 public:
  explicit GroupMethod(const GrpoConfig& config) : config_(config) {}

  std::vector<SourceMetric> metrics() const override { return {{"frac_reward_zero_std"}}; }

  std::vector<double> estimate(std::span<RolloutSequence> sequences) override {
    std::vector<double> rewards;
    for (const RolloutSequence& sequence : sequences) rewards.push_back(sequence.reward);
    const double equal = share_of_equal_groups(rewards);
    if (config_.loss == GrpoConfig::Loss::rloo && config_.beta != 0) {
      subtract_divergence(rewards, config_.beta, FlatColumns(sequences).tokens());
    }
    const std::vector<double> advantages = completion_advantages(config_, rewards);
    for (size_t s = 0; s < sequences.size(); ++s) {
      RolloutSequence& sequence = sequences[s];
      sequence.advantages.assign(sequence.logp.size(), static_cast<float>(advantages[s]));
    }
    return {equal};
  }

 private:
  /// Share of groups with equal rewards, which teach nothing. Completions without a reward do not count, nor do groups
  /// with one reward, as in TRL.
  double share_of_equal_groups(std::span<const double> rewards) const {
    const auto size = static_cast<size_t>(config_.group_size);
    const size_t groups = rewards.size() / size;
    size_t equal = 0;
    for (size_t first = 0; first < rewards.size(); first += size) {
      std::vector<double> group(rewards.begin() + static_cast<std::ptrdiff_t>(first),
                                rewards.begin() + static_cast<std::ptrdiff_t>(first + size));
      std::erase_if(group, [](double reward) { return std::isnan(reward); });
      if (group.size() < 2 && size > 1) continue;
      if (std::ranges::all_of(group, [&](double reward) { return reward == group.front(); })) ++equal;
    }
    return static_cast<double>(equal) / static_cast<double>(groups);
  }

  GrpoConfig config_;
};

class PpoMethod : public AdvantageEstimator {
 public:
  explicit PpoMethod(const PpoConfig& config) : config_(config), kl_coefficient_(config.kl_coefficient) {}

  std::vector<SourceMetric> metrics() const override {
    return {{"objective/kl", "kl"},    {"objective/entropy"}, {"objective/non_score_reward"},
            {"objective/rlhf_reward"}, {"objective/scores"},  {"kl_coefficient"}};
  }

  /// Completions without a reward have no part in means and whitening. Their advantages are 0, and their returns the
  /// critic's own values, so that they move neither model.
  std::vector<double> estimate(std::span<RolloutSequence> sequences) override {
    std::vector<std::reference_wrapper<RolloutSequence>> scored;
    for (RolloutSequence& sequence : sequences) {
      sequence.advantages.assign(sequence.logp.size(), 0);
      sequence.returns = sequence.values;
      if (!std::isnan(sequence.reward)) scored.emplace_back(sequence);
    }
    PpoAdvantages result = scored.empty() ? advantages_of(sequences) : advantages_of(scored);
    if (scored.empty()) result.score = std::numeric_limits<double>::quiet_NaN();  // the divergence is measured
    auto advantages = result.advantages.begin(), returns = result.returns.begin();
    for (RolloutSequence& sequence : scored) {
      const auto tokens = static_cast<std::ptrdiff_t>(sequence.completion_length());
      sequence.advantages.assign(advantages, advantages + tokens);
      sequence.returns.assign(returns, returns + tokens);
      advantages += tokens;
      returns += tokens;
    }
    std::vector<double> reported = {result.kl,    result.entropy, result.non_score_reward, result.rlhf_reward(),
                                    result.score, kl_coefficient_};
    if (config_.adaptive_kl_target > 0) {
      kl_coefficient_ =
          adapted_kl_coefficient(kl_coefficient_, config_.adaptive_kl_target, result.kl, std::ssize(scored));
    }
    return reported;
  }

  std::vector<double> state() const override { return {kl_coefficient_}; }
  void restore(std::span<const double> state) override {
    if (state.size() == 1) kl_coefficient_ = state.front();
  }

 private:
  /// Those of the sequences as if there were no more.
  PpoAdvantages advantages_of(const auto& sequences) const {
    const FlatColumns columns(sequences);
    std::vector<double> scores;
    std::vector<uint8_t> finished;
    for (const RolloutSequence& sequence : sequences) {
      scores.push_back(sequence.reward);
      finished.push_back(sequence.ended ? 1 : 0);
    }
    return ppo_advantages(config_, kl_coefficient_, {columns.tokens(), columns.values, scores, finished});
  }

  PpoConfig config_;
  double kl_coefficient_;
};

}  // namespace

std::unique_ptr<AdvantageEstimator> make_group_estimator(const GrpoConfig& config) {
  return std::make_unique<GroupMethod>(config);
}
std::unique_ptr<AdvantageEstimator> make_ppo_estimator(const PpoConfig& config) {
  return std::make_unique<PpoMethod>(config);
}

}  // namespace llmtrain
