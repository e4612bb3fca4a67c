#include "rollout/advantages.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <ranges>

#include "core/error.hpp"
#include "rollout/reward_sums.hpp"

namespace llmtrain {

namespace {

double k1_of(const CompletionTokens& tokens, size_t token) {
  return static_cast<double>(tokens.logp[token]) - static_cast<double>(tokens.reference[token]);
}

double score_of(const PpoConfig& config, double score, bool finished) {
  score *= config.score_scale;
  if (config.score_clip > 0) score = std::clamp(score, -config.score_clip, config.score_clip);
  return finished ? score : score - config.missing_eos_penalty;
}

/// Rewards of tokens; adds to the sums over completions in `report`.
std::vector<double> token_rewards(const PpoConfig& config, double kl_coefficient, const PpoRollout& rollout,
                                  PpoAdvantages& report) {
  const CompletionTokens& tokens = rollout.tokens;
  std::vector<double> rewards(tokens.logp.size(), 0.0);
  for (size_t c = 0; c + 1 < tokens.offsets.size(); ++c) {
    const size_t begin = static_cast<size_t>(tokens.offsets[c]), end = static_cast<size_t>(tokens.offsets[c + 1]);
    for (size_t t = begin; t < end; ++t) {
      const double k1 = tokens.reference.empty() ? 0 : k1_of(tokens, t);
      const double kl = config.kl_estimator == PpoConfig::KlEstimator::k1 ? k1 : std::expm1(-k1) + k1;
      rewards[t] = -kl_coefficient * kl;
      report.kl += kl;
      report.entropy -= static_cast<double>(tokens.logp[t]);
      report.non_score_reward += rewards[t];
    }
    const double score = score_of(config, rollout.scores[c], rollout.finished[c] != 0);
    report.score += score;
    if (end > begin) rewards[end - 1] += score;
  }
  return rewards;
}

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

std::vector<double> completion_advantages(const GrpoConfig& config, std::span<const double> rewards) {
  const size_t size = static_cast<size_t>(config.group_size);
  LLMTRAIN_CHECK(rewards.size() % size == 0, "whole groups");
  const bool leaves_one_out = config.loss == GrpoConfig::Loss::rloo;
  const RewardMoments batch = reward_moments(rewards);
  std::vector<double> advantages;
  for (size_t begin = 0; begin < rewards.size(); begin += size) {
    const std::span<const double> group = rewards.subspan(begin, size);
    const RewardMoments own = reward_moments(group);
    const double deviation = config.scale_rewards == GrpoConfig::ScaleRewards::batch ? batch.deviation : own.deviation;
    for (const double reward : group) {
      double advantage = reward - own.mean;
      if (leaves_one_out) {
        advantage *= static_cast<double>(own.count) / static_cast<double>(own.count - 1);
      } else if (config.scale_rewards != GrpoConfig::ScaleRewards::none) {
        advantage /= deviation + 1e-4;
      }
      advantages.push_back(std::isfinite(advantage) ? advantage : 0);
    }
  }
  return advantages;
}

void subtract_divergence(std::span<double> rewards, double beta, const CompletionTokens& tokens) {
  for (size_t c = 0; c < rewards.size(); ++c) {
    double kl = 0;
    for (int64_t t = tokens.offsets[c]; t < tokens.offsets[c + 1]; ++t) kl += k1_of(tokens, static_cast<size_t>(t));
    rewards[c] -= beta * kl;
  }
}

void whiten(std::span<double> x, bool moves_mean) {
  if (x.size() < 2) return;
  const RewardMoments all = reward_moments(x);
  const double scale = 1 / std::sqrt(all.deviation * all.deviation + 1e-8), mean = moves_mean ? 0 : all.mean;
  for (double& one : x) one = (one - all.mean) * scale + mean;
}

void generalized_advantages(std::span<double> advantages, std::span<const double> rewards,
                            std::span<const float> values, double gamma, double lambda) {
  double later = 0, next_value = 0;
  for (size_t t = rewards.size(); t-- > 0;) {
    const double value = values[t];
    later = rewards[t] + gamma * next_value - value + gamma * lambda * later;
    advantages[t] = later;
    next_value = value;
  }
}

PpoAdvantages ppo_advantages(const PpoConfig& config, double kl_coefficient, const PpoRollout& rollout) {
  PpoAdvantages result;
  const std::span<const int64_t> offsets = rollout.tokens.offsets;
  LLMTRAIN_CHECK(offsets.size() == rollout.scores.size() + 1 && rollout.finished.size() == rollout.scores.size(),
                 "a score for every completion");
  LLMTRAIN_CHECK(rollout.values.size() == rollout.tokens.logp.size(), "a value for every token");
  std::vector<double> rewards = token_rewards(config, kl_coefficient, rollout, result);
  if (config.whiten_rewards) whiten(rewards, false);
  std::vector<double> advantages(rewards.size());
  for (size_t c = 0; c + 1 < offsets.size(); ++c) {
    const size_t begin = static_cast<size_t>(offsets[c]), length = static_cast<size_t>(offsets[c + 1]) - begin;
    generalized_advantages(std::span(advantages).subspan(begin, length), std::span(rewards).subspan(begin, length),
                           rollout.values.subspan(begin, length), config.gamma, config.lambda);
  }
  for (size_t t = 0; t < advantages.size(); ++t) {
    result.returns.push_back(static_cast<float>(advantages[t] + static_cast<double>(rollout.values[t])));
  }
  whiten(advantages, true);
  for (const double one : advantages) result.advantages.push_back(static_cast<float>(one));
  const double completions = static_cast<double>(std::max<size_t>(rollout.scores.size(), 1));
  result.kl /= completions;
  result.entropy /= completions;
  result.non_score_reward /= completions;
  result.score /= completions;
  return result;
}

double adapted_kl_coefficient(double coefficient, double target, double kl, int64_t completions) {
  constexpr double horizon = 10000, limit = 0.2;  // of TRL's former AdaptiveKLController
  const double error = std::clamp(kl / target - 1, -limit, limit);
  return coefficient * (1 + error * static_cast<double>(completions) / horizon);
}

std::unique_ptr<AdvantageEstimator> make_group_estimator(const GrpoConfig& config) {
  return std::make_unique<GroupMethod>(config);
}
std::unique_ptr<AdvantageEstimator> make_ppo_estimator(const PpoConfig& config) {
  return std::make_unique<PpoMethod>(config);
}

}  // namespace llmtrain
