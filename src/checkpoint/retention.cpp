#include "checkpoint/retention.hpp"

#include <algorithm>
#include <functional>

namespace llmtrain {

std::vector<int64_t> removable(const std::vector<int64_t>& published, const RetentionRules& rules) {
  std::vector<int64_t> steps = published;
  std::sort(steps.begin(), steps.end(), std::greater<>());
  const int64_t keep = std::max<int64_t>(rules.keep, 2);
  std::vector<int64_t> result;
  int64_t newer = 0, newer_verified = 0;
  for (const int64_t step : steps) {
    if (newer >= keep && newer_verified >= 2 && !rules.pinned.contains(step)) result.push_back(step);
    if (rules.refused.contains(step)) continue;
    ++newer;
    if (rules.verified.contains(step)) ++newer_verified;
  }
  std::reverse(result.begin(), result.end());
  return result;
}

std::vector<int64_t> apply_retention(const std::string& folder, const RetentionRules& rules, const SaveHook& hook) {
  std::vector<int64_t> steps = removable(published_steps(folder), rules);
  for (const int64_t step : steps) remove_checkpoint(folder, step, hook);
  return steps;
}

}  // namespace llmtrain
