#pragma once
// Rewards of completions over several functions, of which each may leave completions out: NaN, as in TRL.

#include <cstdint>
#include <span>

namespace llmtrain {

/// Metric: completions of a rollout that no function gave a reward.
inline constexpr const char* unscorable_metric = "rewards/unscorable";

/// Adds weighted rewards of a function to the sums, which begin as NaN. A sum stays NaN while no function gives its
/// completion a reward.
void add_rewards(std::span<double> sums, std::span<const double> rewards, double weight);

/// Of the rewards that are not NaN.
struct RewardMoments {
  int64_t count = 0;
  double mean = 0;       ///< NaN if there are none
  double deviation = 0;  ///< with count - 1 degrees of freedom; 0 if there are fewer than two
};
RewardMoments reward_moments(std::span<const double> rewards);

}  // namespace llmtrain
