#include "params/axis_traffic.hpp"

#include <algorithm>

namespace llmtrain {

StepTraffic AxisTraffic::largest() const {
  StepTraffic t;
  for (const Node& node : nodes) {
    t.port_bytes = std::max({t.port_bytes, node.sent, node.received});
    t.node_bytes = std::max(t.node_bytes, node.within);
    t.own_bytes = std::max(t.own_bytes, node.own);
  }
  t.messages = *std::ranges::max_element(messages);
  t.network_messages = *std::ranges::max_element(network_messages);
  t.requests = requests;
  return t;
}

void AxisTraffic::add(const AxisTraffic& other) {
  for (size_t n = 0; n < nodes.size(); ++n) {
    nodes[n].sent += other.nodes[n].sent;
    nodes[n].received += other.nodes[n].received;
    nodes[n].within += other.nodes[n].within;
    nodes[n].own += other.nodes[n].own;
  }
  for (size_t rank = 0; rank < messages.size(); ++rank) {
    messages[rank] += other.messages[rank];
    network_messages[rank] += other.network_messages[rank];
  }
  requests += other.requests;
}

AxisTraffic group_traffic(const PlannedMesh& mesh, int64_t ranks_per_node, int64_t stride, int64_t size,
                          std::span<const int64_t> micro_batches, const GroupExchange& exchange) {
  const NodeGrid grid{mesh.ranks, ranks_per_node};
  AxisTraffic all(grid);
  all.requests = exchange.requests * (size - 1);
  for (int64_t rank = 0; rank < mesh.ranks; ++rank) {
    const int64_t index = rank / stride % size, first = rank - index * stride;
    const int64_t times = micro_batches[static_cast<size_t>(rank / mesh.tensor)];
    AxisTraffic::Node& node = all.nodes[static_cast<size_t>(grid.node_of(rank))];
    for (int64_t other = 0; other < size; ++other) {
      if (other == index) continue;
      const bool near = grid.node_of(first + other * stride) == grid.node_of(rank);
      if (!near) node.sent += times * exchange.bytes(index, other);
      (near ? node.within : node.received) += times * exchange.bytes(other, index);
      const int64_t messages = times * exchange.messages(index, other);
      all.messages[static_cast<size_t>(rank)] += messages;
      all.network_messages[static_cast<size_t>(rank)] += near ? 0 : messages;
    }
  }
  return all;
}

}  // namespace llmtrain
