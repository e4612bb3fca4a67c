// Completions to which no function gives a reward are left out as TRL leaves them out: rewards, advantages and metrics
// are its numbers. With PPO, where TRL has no such functions, the others are estimated as if there were no more.

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "rollout/advantages.hpp"
#include "rollout/reward_sums.hpp"

namespace llmtrain {
namespace {

using nlohmann::json;

constexpr double none = std::numeric_limits<double>::quiet_NaN();

std::vector<double> numbers(const json& values) {
  std::vector<double> all;
  for (const json& one : values) all.push_back(one.is_null() ? none : one.get<double>());
  return all;
}

/// Number of values that are not the expected ones within 1e-6; NaN is equal to NaN.
int differences(const std::vector<double>& values, const std::vector<double>& expected) {
  EXPECT_EQ(values.size(), expected.size());
  int count = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i]) != std::isnan(expected[i]) || std::abs(values[i] - expected[i]) > 1e-6) ++count;
  }
  return count;
}

std::vector<RolloutSequence> sequences_of(const std::vector<double>& rewards) {
  std::vector<RolloutSequence> sequences;
  for (const double reward : rewards) {
    RolloutSequence& sequence = sequences.emplace_back();
    const float number = static_cast<float>(sequences.size());
    sequence.ids = {1, 2, 3};
    sequence.prompt_length = 1;
    sequence.reward = reward;
    sequence.logp = {-0.25F * number, -0.5F};
    sequence.reference_logp = {-0.5F, -0.125F * number};
    sequence.values = {0.5F, 0.25F * number};
  }
  return sequences;
}

std::vector<double> advantages_of(const std::vector<RolloutSequence>& sequences) {
  std::vector<double> advantages;
  for (const RolloutSequence& sequence : sequences) advantages.push_back(sequence.advantages.front());
  return advantages;
}

json goldens() {
  std::ifstream file("tests/reference/reinforcement/rewards.json");
  return json::parse(file);
}

TEST(UnscorableCompletions, AreLeftOutOfGroupsAsByTrl) {
  const json all = goldens();
  for (const json& one : all["cases"]) {
    SCOPED_TRACE(one["loss"].get<std::string>() + " " + one["scale_rewards"].get<std::string>());
    std::vector<double> sums(one["rewards"].size(), none), as_zero(one["rewards"].size(), 0.0);
    const json& metrics = one["metrics"];
    for (size_t f = 0; f < 2; ++f) {
      const std::vector<double> rewards = numbers(all["functions"][f]);
      add_rewards(sums, rewards, all["weights"][f]);
      add_rewards(as_zero, rewards, all["weights"][f]);
      const RewardMoments moments = reward_moments(rewards);
      const std::string name = f == 0 ? "rewards/first/" : "rewards/second/";
      EXPECT_NEAR(moments.mean, metrics[name + "mean"], 1e-12);
      EXPECT_NEAR(moments.deviation, metrics[name + "std"], 1e-12);
    }
    EXPECT_EQ(differences(sums, numbers(one["rewards"])), 0);
    const RewardMoments moments = reward_moments(sums);
    EXPECT_EQ(moments.count, 11);
    EXPECT_NEAR(moments.mean, metrics["reward"], 1e-12);
    EXPECT_NEAR(moments.deviation, metrics["reward_std"], 1e-12);

    GrpoConfig config;
    config.group_size = all["group_size"];
    config.beta = 0;
    if (one["loss"] == "rloo") config.loss = GrpoConfig::Loss::rloo;
    if (one["scale_rewards"] == "batch") config.scale_rewards = GrpoConfig::ScaleRewards::batch;
    if (one["scale_rewards"] == "none") config.scale_rewards = GrpoConfig::ScaleRewards::none;
    const auto method = make_group_estimator(config);
    std::vector<RolloutSequence> sequences = sequences_of(sums);
    const double equal = method->estimate(sequences).front();
    // TRL's deviation of the whole batch is the same for all groups; ours are those of groups.
    if (one["scale_rewards"] != "batch") {
      EXPECT_NEAR(equal, metrics["frac_reward_zero_std"], 1e-6);
    }
    EXPECT_EQ(differences(advantages_of(sequences), numbers(one["advantages"])), 0);
    std::vector<RolloutSequence> control = sequences_of(as_zero);
    method->estimate(control);
    EXPECT_GT(differences(advantages_of(control), numbers(one["advantages"])), 8) << "the control: as rewards of 0";
  }
}

TEST(UnscorableCompletions, HaveNoPartInPpo) {
  const std::vector<double> rewards = {1, none, 0.5, none, -2};
  std::vector<RolloutSequence> with = sequences_of(rewards), without, zero = sequences_of({1, 0, 0.5, 0, -2});
  for (const size_t kept : {0, 2, 4}) without.push_back(with[kept]);
  PpoConfig config;
  config.whiten_rewards = true;
  config.adaptive_kl_target = 6;
  const auto method = make_ppo_estimator(config), other = make_ppo_estimator(config),
             control = make_ppo_estimator(config);
  EXPECT_EQ(method->estimate(with), other->estimate(without));
  EXPECT_EQ(method->state(), other->state());
  control->estimate(zero);
  EXPECT_NE(method->state(), control->state()) << "the control: as rewards of 0";
  for (const size_t kept : {0, 1, 2}) {
    EXPECT_EQ(with[2 * kept].advantages, without[kept].advantages);
    EXPECT_EQ(with[2 * kept].returns, without[kept].returns);
    EXPECT_NE(with[2 * kept].advantages, zero[2 * kept].advantages) << "the control";
  }
  EXPECT_EQ(with[1].advantages, (std::vector<float>{0, 0}));
  EXPECT_EQ(with[1].returns, with[1].values);
  std::vector<RolloutSequence> nothing = sequences_of({none, none});
  std::vector<RolloutSequence> as_zero = sequences_of({0, 0});
  std::vector<double> expected = other->estimate(as_zero);
  expected[3] = expected[4] = none;  // objective/rlhf_reward and objective/scores; the divergence is measured
  EXPECT_EQ(differences(method->estimate(nothing), expected), 0);
  EXPECT_NE(expected[0], 0);
  EXPECT_EQ(nothing[0].advantages, (std::vector<float>{0, 0}));
}

}  // namespace
}  // namespace llmtrain
