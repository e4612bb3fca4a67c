#include "system/slow_nodes.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace llmtrain {

SlowNodes::SlowNodes(std::vector<std::string> hosts, const SlowNodeOptions& options) : options_(options) {
  for (std::string& host : hosts) ranks_.emplace_back().host = std::move(host);
}

/// True if the interval says the opposite of the rank's state.
bool SlowNodes::contradicts(const Rank& rank, const RankTimes& times) const {
  const double cost = times.own_seconds * (1 - 1 / rank.ratio);  // seconds above the median
  const bool matters = cost >= options_.share * times.seconds;
  if (rank.slow) return rank.ratio <= options_.recovered || !matters;
  return rank.ratio >= options_.factor && matters;
}

std::vector<NodeNotice> SlowNodes::update(std::span<const RankTimes> ranks, int64_t step) {
  std::vector<NodeNotice> notices;
  if (options_.seconds <= 0 || ranks.size() != ranks_.size()) return notices;
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
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const std::string& host = ranks_[r].host;
    const auto of_host = [&](const Rank& rank) { return rank.host == host; };
    NodeNotice notice;
    notice.step = step;
    notice.host = host;
    for (size_t other = 0; other < ranks_.size(); ++other) {
      if (!of_host(ranks_[other]) || !ranks_[other].slow) continue;
      notice.ranks.push_back(static_cast<int>(other));
      notice.ratio = std::max(notice.ratio, ranks_[other].ratio);
    }
    notice.slow = !notice.ranks.empty();
    const auto named = std::ranges::find(named_, host);
    if (notice.slow == (named != named_.end())) continue;
    if (notice.slow) {
      named_.push_back(host);
    } else {
      named_.erase(named);
      for (const Rank& rank : ranks_) notice.ratio = of_host(rank) ? std::max(notice.ratio, rank.ratio) : notice.ratio;
    }
    notices.push_back(std::move(notice));
  }
  return notices;
}

}  // namespace llmtrain
