#pragma once
#include <map>
#include <memory>
#include <string>

#include "parallel/communicator.hpp"
#include "system/node_sample.hpp"
#include "system/rank_traffic.hpp"
#include "system/slow_nodes.hpp"

namespace llmtrain {

struct RankMonitorOptions {
  bool system = true;  ///< values of the nodes, and of the traffic between them
  std::string folder;  ///< of the run
  SlowNodeOptions slow = {};
};

/// Collects times of all ranks and values of all nodes at log intervals. A thread of each node's first rank samples the
/// node.
class RankMonitor {
 public:
  /// Collective.
  RankMonitor(Communicator& communicator, const RankMonitorOptions& options);

  void add(const StepRecord& record);
  /// Collective, after the last step of a log interval. Returns the interval's values on rank 0.
  SystemRecord exchange(int64_t step);

 private:
  Communicator& communicator_;
  const bool traffic_;  ///< of RankMonitorOptions
  RankTimes times_;
  RankTraffic own_traffic_;
  std::string name_;                   ///< of this node, different from those of all others
  std::unique_ptr<NodeMonitor> node_;  ///< on the first rank of each node
  std::unique_ptr<SlowNodes> slow_;    ///< on rank 0
  size_t nodes_ = 0;
  std::map<std::string, double> joules_;  ///< on rank 0, by metric: what nodes have used, as far as they count it
};

}  // namespace llmtrain
