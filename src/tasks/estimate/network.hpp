#pragma once
// Costs of a step's traffic on a network, for --estimate.

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "parallel/traffic.hpp"
#include "params/traffic_model.hpp"

namespace llmtrain {

/// Network between nodes.
struct Network {
  double bytes_per_second = 0;    ///< of a port, in each direction
  double message_seconds = 2e-6;  ///< that a rank spends for each message it sends
  int64_t ports = 1;              ///< of a node
  double flops = 0;               ///< FLOP/s that a rank achieves; 0: unknown
  int64_t sockets = 1;            ///< of a node, each with memory of its own
  /// Speed at which ranks read each other's data in the memory of a socket, bytes/s; 0: unknown.
  double memory_bytes_per_second = 0;
};

/// Parses "200Gb/s[,latency=2us][,ports=2][,flops=300T][,sockets=2][,memory=200GB/s]" (also MB/s, Mb/s). Throws
/// UserError(command_line).
Network parse_network(const std::string& text);

/// Traffic of a job, and times in seconds as far as they are known.
struct TrafficEstimate {
  StepTraffic step;
  std::array<StepTraffic, traffic_axes.size()> axes = {};  ///< parts of `step`, where ranks exchange along several
  int64_t nodes = 1;
  double opens_per_second = 0;   ///< of all ranks together, while steps run
  int64_t checkpoint_files = 1;  ///< of the state
  std::optional<Network> network = {};
  double computing = 0;  ///< of a step; 0: unknown

  // 0: unknown
  double network_seconds() const { return network_seconds(step); }  ///< of transfers between nodes
  double node_seconds() const { return node_seconds(step); }        ///< inside a node
  /// Time of a step whose transfers along the data axis overlap completely with computing, and of one without any
  /// overlap. Layers wait for those along the other axes.
  double overlapped_seconds() const;
  double serial_seconds() const { return computing + network_seconds() + node_seconds(); }
  bool has_time() const { return network.has_value() && computing > 0; }

 private:
  double network_seconds(const StepTraffic& traffic) const;
  double node_seconds(const StepTraffic& traffic) const;
};

}  // namespace llmtrain
