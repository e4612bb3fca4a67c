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
  struct Node {
    int64_t sent = 0, received = 0, within = 0;
  };
  std::map<int64_t, Node> nodes;
  int64_t messages = 0, requests = 0;
  double opened = 0;
  for (const RankTraffic& rank : ranks) {
    Node& node = nodes[rank.node];
    node.sent += rank.last[TrafficClass::network].sent;
    node.received += rank.last[TrafficClass::network].received;
    node.within += rank.last[TrafficClass::node].received;
    messages = std::max(messages, rank.last.messages());
    requests = std::max(requests, rank.last.requests);
    opened += rank.files_opened / std::max(rank.steps, 1.0);
  }
  int64_t port = 0, within = 0;
  for (const auto& [number, node] : nodes) {
    port = std::max({port, node.sent, node.received});
    within = std::max(within, node.within);
  }
  return {{"traffic/port_bytes", {}, static_cast<double>(port)},
          {"traffic/node_bytes", {}, static_cast<double>(within)},
          {"traffic/messages", {}, static_cast<double>(messages)},
          {"traffic/requests", {}, static_cast<double>(requests)},
          {"traffic/files_opened", {}, opened}};
}

}  // namespace llmtrain
