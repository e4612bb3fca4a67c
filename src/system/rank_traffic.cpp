#include "system/rank_traffic.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>

namespace llmtrain {

void RankTraffic::add(int rank, const Traffic& counts) {
  node = counts.node_of(rank);
  last = counts.last_step();
  steps += 1;
  files_opened += static_cast<double>(last.files_opened);
}

namespace {

/// The counts of a rank, of all axes or one.
using CountsOf = std::function<const TrafficCounts::Classes&(const TrafficCounts& counts)>;

void add_values(std::vector<NamedValue>& values, const std::string& prefix, std::span<const RankTraffic> ranks,
                const CountsOf& counts_of) {
  struct Node {
    int64_t sent = 0, received = 0, within = 0;
  };
  std::map<int64_t, Node> nodes;
  int64_t messages = 0, port = 0, inside = 0;
  for (const RankTraffic& rank : ranks) {
    const TrafficCounts::Classes& counts = counts_of(rank.last);
    const auto &within = counts[static_cast<size_t>(TrafficClass::node)],
               &network = counts[static_cast<size_t>(TrafficClass::network)];
    Node& node = nodes[rank.node];
    node.sent += network.sent;
    node.received += network.received;
    node.within += within.received;
    messages = std::max(messages, within.messages + network.messages);
  }
  for (const auto& [number, node] : nodes) {
    port = std::max({port, node.sent, node.received});
    inside = std::max(inside, node.within);
  }
  values.push_back({prefix + "port_bytes", {}, static_cast<double>(port)});
  values.push_back({prefix + "node_bytes", {}, static_cast<double>(inside)});
  values.push_back({prefix + "messages", {}, static_cast<double>(messages)});
}

/// True if a rank moves something along the axis.
bool is_used(std::span<const RankTraffic> ranks, TrafficAxis axis) {
  return std::ranges::any_of(ranks, [&](const RankTraffic& rank) {
    return std::ranges::any_of(rank.last.of(axis),
                               [](const TrafficCounts::Class& c) { return c.sent + c.received > 0; });
  });
}

}  // namespace

std::vector<NamedValue> traffic_values(std::span<const RankTraffic> ranks) {
  std::vector<NamedValue> values;
  add_values(
      values, "traffic/", ranks, [](const TrafficCounts& c) -> const auto& { return c.classes; });
  int64_t requests = 0;
  double opened = 0;
  for (const RankTraffic& rank : ranks) {
    requests = std::max(requests, rank.last.requests);
    opened += rank.files_opened / std::max(rank.steps, 1.0);
  }
  values.push_back({"traffic/requests", {}, static_cast<double>(requests)});
  values.push_back({"traffic/files_opened", {}, opened});
  const auto used = [&](TrafficAxis axis) { return is_used(ranks, axis); };
  if (std::ranges::none_of(std::array{TrafficAxis::context, TrafficAxis::tensor, TrafficAxis::expert}, used)) {
    return values;
  }
  for (size_t a = 0; a < traffic_axes.size(); ++a) {
    const auto axis = static_cast<TrafficAxis>(a);
    if (axis != TrafficAxis::data && !is_used(ranks, axis)) continue;
    add_values(
        values, fmt::format("traffic/{}/", traffic_axes[a]),
        ranks, [&](const TrafficCounts& c) -> const auto& { return c.of(axis); });
  }
  return values;
}

}  // namespace llmtrain
