#pragma once
#include <span>
#include <vector>

#include "metrics/records.hpp"
#include "parallel/traffic.hpp"

namespace llmtrain {

/// Counts of one rank's transfers in the last step of a log interval, and of the files that it opened in all its steps.
struct RankTraffic {
  int64_t node = 0;  ///< number of its node
  TrafficCounts last;
  double steps = 0, files_opened = 0;

  void add(int rank, const Traffic& counts);
};

/// The traffic of all ranks in a step:
///   traffic/port_bytes    bytes through the port of the busiest node, the larger of what enters and what leaves it
///   traffic/node_bytes    largest number of bytes that move inside a node
///   traffic/messages      largest number of messages that a rank sends
///   traffic/requests      largest number of requests of a rank in progress at once
///   traffic/files_opened  files that all ranks open, a mean over the steps
///   traffic/AXIS/...      the first three of one axis of the mesh (data, context, tensor), where ranks exchange along
///                         others than data
std::vector<NamedValue> traffic_values(std::span<const RankTraffic> ranks);

}  // namespace llmtrain
