#include "rollout/reward_sums.hpp"

#include <cmath>

namespace llmtrain {

void add_rewards(std::span<double> sums, std::span<const double> rewards, double weight) {
  for (size_t i = 0; i < sums.size(); ++i) {
    if (std::isnan(rewards[i])) continue;
    const double part = weight * rewards[i];
    sums[i] = std::isnan(sums[i]) ? part : sums[i] + part;
  }
}

RewardMoments reward_moments(std::span<const double> rewards) {
  RewardMoments found;
  double sum = 0, squares = 0;
  for (const double reward : rewards) {
    if (std::isnan(reward)) continue;
    sum += reward;
    ++found.count;
  }
  found.mean = sum / static_cast<double>(found.count);
  for (const double reward : rewards) {
    if (!std::isnan(reward)) squares += (reward - found.mean) * (reward - found.mean);
  }
  if (found.count > 1) found.deviation = std::sqrt(squares / static_cast<double>(found.count - 1));
  return found;
}

}  // namespace llmtrain
