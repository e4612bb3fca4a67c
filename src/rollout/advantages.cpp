#include "rollout/advantages.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.hpp"

namespace llmtrain {

namespace {

/// Count, mean and standard deviation (Bessel's) of the numbers that are not NaN; the latter is NaN for less than two.
struct Moments {
  double count = 0, mean = 0, deviation = std::numeric_limits<double>::quiet_NaN();
};

Moments moments(std::span<const double> x) {
  Moments found;
  double sum = 0, squares = 0;
  for (const double one : x) {
    if (std::isnan(one)) continue;
    sum += one;
    found.count += 1;
  }
  found.mean = sum / found.count;
  for (const double one : x) {
    if (!std::isnan(one)) squares += (one - found.mean) * (one - found.mean);
  }
  if (found.count > 1) found.deviation = std::sqrt(squares / (found.count - 1));
  return found;
}

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

}  // namespace

std::vector<double> completion_advantages(const GrpoConfig& config, std::span<const double> rewards) {
  const size_t size = static_cast<size_t>(config.group_size);
  LLMTRAIN_CHECK(rewards.size() % size == 0, "whole groups");
  const bool leaves_one_out = config.loss == GrpoConfig::Loss::rloo;
  const Moments batch = moments(rewards);
  std::vector<double> advantages;
  for (size_t begin = 0; begin < rewards.size(); begin += size) {
    const std::span<const double> group = rewards.subspan(begin, size);
    const Moments own = moments(group);
    const double deviation = config.scale_rewards == GrpoConfig::ScaleRewards::batch ? batch.deviation : own.deviation;
    for (const double reward : group) {
      double advantage = reward - own.mean;
      if (leaves_one_out) {
        advantage *= own.count / (own.count - 1);
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
  const Moments all = moments(x);
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

}  // namespace llmtrain
