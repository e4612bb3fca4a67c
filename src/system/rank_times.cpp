#include "system/rank_times.hpp"

#include <algorithm>
#include <limits>
#include <string>

namespace llmtrain {

void RankTimes::add(const StepRecord& record) {
  ++steps;
  seconds += record.seconds;
  phases.data += record.phases.data;
  phases.forward_backward += record.phases.forward_backward;
  phases.reduction += record.phases.reduction;
  phases.optimizer += record.phases.optimizer;
  own_seconds += record.own.seconds;
  own_tokens += static_cast<double>(record.own.tokens);
}

std::vector<NamedValue> rank_values(std::span<const RankTimes> ranks) {
  std::vector<NamedValue> values;
  const auto put = [&](const std::string& name, const auto& seconds_of) {
    std::vector<double> sorted;
    for (const RankTimes& rank : ranks) sorted.push_back(seconds_of(rank) / std::max(rank.steps, 1.0));
    std::ranges::sort(sorted);
    const size_t half = sorted.size() / 2;
    const double median = sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
    const std::string prefix = "ranks/" + name + "_seconds/";
    values.push_back({prefix + "min", {}, sorted.front()});
    values.push_back({prefix + "median", {}, median});
    values.push_back({prefix + "max", {}, sorted.back()});
  };
  if (ranks.empty()) return values;
  put("step", [](const RankTimes& r) { return r.seconds; });
  put("data", [](const RankTimes& r) { return r.phases.data; });
  put("forward_backward", [](const RankTimes& r) { return r.phases.forward_backward; });
  put("reduction", [](const RankTimes& r) { return r.phases.reduction; });
  put("optimizer", [](const RankTimes& r) { return r.phases.optimizer; });
  put("own", [](const RankTimes& r) { return r.own_seconds; });
  return values;
}

std::vector<double> own_ratios(std::span<const RankTimes> ranks) {
  std::vector<double> ratios(ranks.size(), std::numeric_limits<double>::quiet_NaN()), sorted;
  const auto works = [](const RankTimes& rank) { return rank.own_tokens > 0 && rank.own_seconds > 0; };
  for (const RankTimes& rank : ranks) {
    if (works(rank)) sorted.push_back(rank.own_seconds / rank.own_tokens);
  }
  if (sorted.size() < 2) return ratios;
  std::ranges::sort(sorted);
  const double median = sorted[(sorted.size() - 1) / 2];
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (works(ranks[r])) ratios[r] = ranks[r].own_seconds / ranks[r].own_tokens / median;
  }
  return ratios;
}

}  // namespace llmtrain
