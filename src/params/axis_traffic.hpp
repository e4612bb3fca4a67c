#pragma once
// Traffic of a step by axis of the mesh, and that of the axes whose ranks share micro-batches.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "parallel/mesh_shape.hpp"
#include "parallel/node_grid.hpp"

namespace llmtrain {

/// Traffic of a step; names and meanings as in the metrics traffic/...
struct StepTraffic {
  int64_t port_bytes = 0;
  int64_t node_bytes = 0;
  int64_t own_bytes = 0;  ///< largest over nodes: what its ranks read of their own memory instead
  int64_t messages = 0;
  int64_t network_messages = 0;  ///< largest over ranks: to other nodes
  int64_t requests = 0;          ///< at most
};

/// Traffic of a step along one axis of the mesh, or several.
struct AxisTraffic {
  struct Node {
    int64_t sent = 0, received = 0;  ///< through its port
    int64_t within = 0, own = 0;
    bool operator==(const Node&) const = default;
  };
  std::vector<Node> nodes;
  std::vector<int64_t> messages, network_messages;  ///< by rank
  int64_t requests = 0;                             ///< of a rank, at most

  /// No traffic, on a grid.
  explicit AxisTraffic(const NodeGrid& grid)
      : nodes(static_cast<size_t>(grid.nodes())),
        messages(static_cast<size_t>(grid.ranks)),
        network_messages(messages.size()) {}
  StepTraffic largest() const;
  /// Adds that of another axis of the same ranks.
  void add(const AxisTraffic& other);
};

/// Messages between ranks that share a micro-batch, in a step.
struct GroupExchange {
  /// Bytes that the rank of a group with index `from` sends to the one with index `to`, in one micro-batch.
  std::function<int64_t(int64_t from, int64_t to)> bytes;
  /// Messages of one to the other, in one micro-batch.
  std::function<int64_t(int64_t from, int64_t to)> messages;
  int64_t requests = 0;  ///< of a rank with each of the others at once
};
/// Traffic of groups of `size` ranks, each `stride` after the one before, along the context or tensor axis.
/// `micro_batches`: by group of tensor ranks (rank / mesh.tensor), those that it computes in a step.
AxisTraffic group_traffic(const PlannedMesh& mesh, int64_t ranks_per_node, int64_t stride, int64_t size,
                          std::span<const int64_t> micro_batches, const GroupExchange& exchange);

}  // namespace llmtrain
