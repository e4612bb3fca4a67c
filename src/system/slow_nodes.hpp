#pragma once
// Finds nodes that slow a job down. All ranks wait for each other in every step, so the time of a step tells nobody;
// the time of a rank's own work does.

#include <span>
#include <string>
#include <vector>

#include "metrics/records.hpp"

namespace llmtrain {

/// Times of one rank over a log interval.
struct RankTimes {
  double steps = 0;
  double seconds = 0;         ///< of all steps
  StepRecord::Phases phases;  ///< sums over the steps, seconds
  double own_seconds = 0;     ///< of the rank's own passes and reading, without waiting for other ranks
  double own_tokens = 0;      ///< tokens of these passes

  void add(const StepRecord& record);
};

/// Minimum, median and maximum over the ranks of the mean seconds of a step and of its parts:
/// "ranks/step_seconds/max", ...
std::vector<NamedValue> rank_values(std::span<const RankTimes> ranks);

/// Seconds of own work a token, relative to the median of the ranks (of two: to the faster one). NaN for a rank without
/// own work, and if fewer than two have some.
std::vector<double> own_ratios(std::span<const RankTimes> ranks);

struct SlowNodeOptions {
  double factor = 1.3;      ///< own work of a slow rank, relative to the median of the ranks
  double recovered = 1.15;  ///< the same of a rank that is no longer slow
  double share = 0.05;      ///< part of the steps' time that a slow rank costs at least
  double seconds = 60;      ///< for which a rank is slow before its node is named; 0: no node is named
  int intervals = 3;        ///< the same in log intervals
};

class SlowNodes {
 public:
  /// `hosts`: names of the ranks' nodes.
  SlowNodes(const std::vector<std::string>& hosts, const SlowNodeOptions& options);

  /// Takes the ranks' times of a log interval, which ends after `step`. Returns the nodes that have become slow, once
  /// each, and those that have recovered.
  std::vector<NodeNotice> update(std::span<const RankTimes> ranks, int64_t step);

 private:
  struct Node {
    std::string host;
    std::vector<size_t> ranks;
    bool named = false;  ///< true if it is reported as slow
  };
  struct Rank {
    bool slow = false;
    double ratio = 1;    ///< in the last interval
    double seconds = 0;  ///< for which the rank is not as `slow` says
    int intervals = 0;
  };
  bool contradicts(const Rank& rank, const RankTimes& times) const;
  void update_ranks(std::span<const RankTimes> ranks);
  NodeNotice notice_of(const Node& node, int64_t step) const;

  SlowNodeOptions options_;
  std::vector<Rank> ranks_;
  std::vector<Node> nodes_;
};

}  // namespace llmtrain
