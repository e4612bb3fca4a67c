#include "system/rank_traffic.hpp"

#include <algorithm>
#include <map>

namespace llmtrain {

void RankTraffic::add(int rank, const Traffic& counts) {
  node = counts.node_of(rank);
  last = counts.last_step();
  steps += 1;
  files_opened += static_cast<double>(last.files_opened);
}

std::vector<NamedValue> traffic_values(std::span<const RankTraffic> ranks) {
  std::map<int64_t, TrafficCounts> nodes;
  TrafficCounts largest;
  double opened = 0;
  for (const RankTraffic& rank : ranks) {
    TrafficCounts& node = nodes[rank.node];
    node.sent += rank.last.sent;
    node.received += rank.last.received;
    node.within_node += rank.last.within_node;
    largest.messages = std::max(largest.messages, rank.last.messages);
    largest.requests = std::max(largest.requests, rank.last.requests);
    opened += rank.files_opened / std::max(rank.steps, 1.0);
  }
  int64_t port = 0;
  for (const auto& [number, node] : nodes) {
    port = std::max({port, node.sent, node.received});
    largest.within_node = std::max(largest.within_node, node.within_node);
  }
  return {{"traffic/port_bytes", {}, static_cast<double>(port)},
          {"traffic/node_bytes", {}, static_cast<double>(largest.within_node)},
          {"traffic/messages", {}, static_cast<double>(largest.messages)},
          {"traffic/requests", {}, static_cast<double>(largest.requests)},
          {"traffic/files_opened", {}, opened}};
}

}  // namespace llmtrain
