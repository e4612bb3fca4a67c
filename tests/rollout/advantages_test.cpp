// Advantages of a rollout are TRL's; they do not depend on the groups and completions beside.

#include "rollout/advantages.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

namespace llmtrain {
namespace {

using nlohmann::json;

json golden(const std::string& name) {
  std::ifstream file("tests/reference/reinforcement/" + name);
  return json::parse(file);
}

std::vector<double> rewards_of(const json& goldens) {
  std::vector<double> rewards;
  for (const json& one : goldens["rewards"])
    rewards.push_back(one.is_null() ? std::numeric_limits<double>::quiet_NaN() : one.get<double>());
  return rewards;
}

template <class T>
double largest_difference(const std::vector<T>& values, const json& expected) {
  EXPECT_EQ(values.size(), expected.size());
  double found = 0;
  for (size_t i = 0; i < values.size(); ++i)
    found = std::max(found, std::abs(static_cast<double>(values[i]) - expected[i].get<double>()));
  return found;
}

/// Offsets of completions of these lengths.
std::vector<int64_t> offsets_of(const json& lengths) {
  std::vector<int64_t> offsets = {0};
  for (const json& length : lengths) offsets.push_back(offsets.back() + length.get<int64_t>());
  return offsets;
}

TEST(Advantages, OfGroupsAreTrls) {
  const json goldens = golden("grpo.json");
  GrpoConfig config;
  config.group_size = goldens["group_size"];
  const std::vector<double> rewards = rewards_of(goldens);
  for (const json& one : goldens["completions"]) {
    const auto& names = enum_names<GrpoConfig::ScaleRewards>;
    const auto name = std::ranges::find(names, one["scale_rewards"].get<std::string>());
    config.scale_rewards = static_cast<GrpoConfig::ScaleRewards>(name - names.begin());
    EXPECT_LT(largest_difference(completion_advantages(config, rewards), one["advantages"]), 1e-12) << *name;
    config.group_size /= 2;
    EXPECT_GT(largest_difference(completion_advantages(config, rewards), one["advantages"]), 0.1) << "the control";
    config.group_size *= 2;
  }
}

TEST(Advantages, LeaveOneOutIsTrls) {
  const json goldens = golden("rloo.json");
  GrpoConfig config;
  config.loss = GrpoConfig::Loss::rloo;
  config.group_size = goldens["group_size"];
  const auto logp = goldens["old"].get<std::vector<float>>(),
             reference = goldens["reference"].get<std::vector<float>>();
  const std::vector<int64_t> offsets = offsets_of(goldens["lengths"]);
  for (const json& one : goldens["completions"]) {
    std::vector<double> rewards = rewards_of(goldens);
    subtract_divergence(rewards, one["beta"], {offsets, logp, reference});
    EXPECT_LT(largest_difference(completion_advantages(config, rewards), one["advantages"]), 1e-12);
  }
  EXPECT_NE(goldens["completions"][0], goldens["completions"][1]) << "the control";
}

TEST(Advantages, OfTokensAreTrls) {
  const json goldens = golden("ppo.json");
  const auto logp = goldens["old"].get<std::vector<float>>(),
             reference = goldens["reference"].get<std::vector<float>>();
  const auto values = goldens["old_values"].get<std::vector<float>>();
  const auto scores = goldens["scores"].get<std::vector<double>>();
  const std::vector<int64_t> offsets = offsets_of(goldens["lengths"]);
  const std::vector<uint8_t> finished(scores.size(), 1);
  const PpoRollout rollout{{offsets, logp, reference}, values, scores, finished};
  for (const json& one : goldens["rollouts"]) {
    PpoConfig config;
    config.gamma = one.value("gamma", 1.0);
    config.lambda = one.value("lam", 0.95);
    config.whiten_rewards = one.value("whiten_rewards", false);
    if (one.value("kl_estimator", "k1") == "k3") config.kl_estimator = PpoConfig::KlEstimator::k3;
    const double coefficient = one.value("kl_coef", 0.05);
    const PpoAdvantages found = ppo_advantages(config, coefficient, rollout);
    EXPECT_LT(largest_difference(found.advantages, one["advantages"]), 1e-6) << one;
    EXPECT_LT(largest_difference(found.returns, one["returns"]), 1e-6) << one;
    EXPECT_NEAR(found.kl, one["kl"], 1e-12);
    const PpoAdvantages other = ppo_advantages(config, coefficient + 0.01, rollout);
    EXPECT_GT(largest_difference(other.returns, one["returns"]), 1e-4) << "the control";
  }
}

TEST(Advantages, ScoresAreScaledClippedAndPenalised) {
  PpoConfig config;
  config.score_scale = 2;
  config.score_clip = 3;
  config.missing_eos_penalty = 1;
  const std::vector<int64_t> offsets = {0, 1, 2, 3};
  const std::vector<float> logp = {-1, -1, -1}, values = {0, 0, 0};
  const std::vector<double> scores = {1, 5, -5};
  const std::vector<uint8_t> finished = {1, 1, 0};
  const PpoAdvantages found = ppo_advantages(config, 0.05, {{offsets, logp, {}}, values, scores, finished});
  EXPECT_EQ(found.returns, (std::vector<float>{2, 3, -4}));
  EXPECT_DOUBLE_EQ(found.score, 1.0 / 3);
  EXPECT_EQ(found.kl, 0);
}

TEST(Advantages, WhitenedOnesHaveUnitVariance) {
  std::vector<double> x = {1, 2, 4, 9}, kept = x;
  whiten(x, true);
  whiten(kept, false);
  double sum = 0, squares = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    sum += x[i];
    squares += x[i] * x[i];
    EXPECT_NEAR(kept[i] - x[i], 4, 1e-12) << "the mean";
  }
  EXPECT_NEAR(sum, 0, 1e-12);
  EXPECT_NEAR(squares / 3, 1, 1e-8) << "with Bessel's correction";
  std::vector<double> one = {7};
  whiten(one, true);
  EXPECT_EQ(one.front(), 7) << "one number has no variance";
}

TEST(Advantages, CoefficientFollowsTheDivergence) {
  EXPECT_DOUBLE_EQ(adapted_kl_coefficient(0.2, 6, 6, 64), 0.2);
  EXPECT_DOUBLE_EQ(adapted_kl_coefficient(0.2, 6, 6.6, 64), 0.2 * (1 + 0.1 * 64 / 10000));
  EXPECT_DOUBLE_EQ(adapted_kl_coefficient(0.2, 6, 60, 64), 0.2 * (1 + 0.2 * 64 / 10000)) << "limited";
  EXPECT_DOUBLE_EQ(adapted_kl_coefficient(0.2, 6, 0, 64), 0.2 * (1 - 0.2 * 64 / 10000));
}

}  // namespace
}  // namespace llmtrain
