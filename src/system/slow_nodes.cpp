#include "system/slow_nodes.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

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

SlowNodes::SlowNodes(const std::vector<std::string>& hosts, const SlowNodeOptions& options)
    : options_(options), ranks_(hosts.size()) {
  std::map<std::string, size_t> known;
  for (size_t r = 0; r < hosts.size(); ++r) {
    const auto [node, is_new] = known.try_emplace(hosts[r], nodes_.size());
    if (is_new) nodes_.push_back({hosts[r], {}});
    nodes_[node->second].ranks.push_back(r);
  }
}

/// True if the interval says the opposite of the rank's state.
bool SlowNodes::contradicts(const Rank& rank, const RankTimes& times) const {
  const double cost = times.own_seconds * (1 - 1 / rank.ratio);  // seconds above the median
  const bool matters = cost >= options_.share * times.seconds;
  if (rank.slow) return rank.ratio <= options_.recovered || !matters;
  return rank.ratio >= options_.factor && matters;
}

void SlowNodes::update_ranks(std::span<const RankTimes> ranks) {
  const std::vector<double> ratios = own_ratios(ranks);
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (std::isnan(ratios[r])) continue;
    Rank& rank = ranks_[r];
    rank.ratio = ratios[r];
    const bool opposite = contradicts(rank, ranks[r]);
    rank.seconds = opposite ? rank.seconds + ranks[r].seconds : 0;
    rank.intervals = opposite ? rank.intervals + 1 : 0;
    if (rank.seconds < options_.seconds || rank.intervals < options_.intervals) continue;
    rank.slow = !rank.slow;
    rank.seconds = 0;
    rank.intervals = 0;
  }
}

/// The state of a node: its slow ranks and their largest ratio, or the largest ratio of all its ranks.
NodeNotice SlowNodes::notice_of(const Node& node, int64_t step) const {
  NodeNotice notice;
  notice.step = step;
  notice.host = node.host;
  double ratio = 0;
  for (const size_t r : node.ranks) {
    ratio = std::max(ratio, ranks_[r].ratio);
    if (!ranks_[r].slow) continue;
    notice.ranks.push_back(static_cast<int>(r));
    notice.ratio = std::max(notice.ratio, ranks_[r].ratio);
  }
  notice.slow = !notice.ranks.empty();
  if (!notice.slow) notice.ratio = ratio;
  return notice;
}

std::vector<NodeNotice> SlowNodes::update(std::span<const RankTimes> ranks, int64_t step) {
  std::vector<NodeNotice> notices;
  if (options_.seconds <= 0 || ranks.size() != ranks_.size()) return notices;
  update_ranks(ranks);
  for (Node& node : nodes_) {
    NodeNotice notice = notice_of(node, step);
    if (notice.slow == node.named) continue;
    node.named = notice.slow;
    notices.push_back(std::move(notice));
  }
  return notices;
}

}  // namespace llmtrain
