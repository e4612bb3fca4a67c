#pragma once
// Predicts what a step moves between and inside nodes, for any number of ranks, from the geometry of the units alone.
// The counters of a run (parallel/traffic.hpp) count the same transfers.

#include <cstdint>
#include <span>

#include "params/unit_state.hpp"

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

/// How ranks reach each other.
enum class Transport : uint8_t {
  shared_memory,  ///< ranks of a node read each other's buffers; MPI messages between nodes
  messages,       ///< MPI messages between all ranks
  nccl,           ///< NCCL: messages for gradients, and for weights messages by node, or a ring of all ranks
};

/// Elements of a unit that one rank updates as a whole: the owners of their shards send it what it needs, and receive
/// the outcome, both in bf16. At stage 0 every rank has the former, and receives the latter.
struct WholeTensor {
  int unit;
  int64_t first, last;
  int rank;
};

/// Traffic of a full step, of units that were planned for any rank of options().size ranks on nodes of
/// `ranks_per_node`, the last of which may have fewer. `updated`: by the optimizer. Passes of a reference or reward
/// model are not included.
StepTraffic predict_traffic(const UnitStates& units, int64_t ranks_per_node, Transport transport,
                            std::span<const WholeTensor> updated = {});

}  // namespace llmtrain
