#include "system/slow_nodes.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace llmtrain {

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
