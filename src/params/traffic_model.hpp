#pragma once
// Predicts what a step moves between and inside nodes, for any number of ranks, from the geometry of the units alone.
// The counters of a run (parallel/traffic.hpp) count the same transfers.

#include <cstdint>
#include <span>

#include "params/axis_traffic.hpp"
#include "params/unit_state.hpp"

namespace llmtrain {

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

/// The same along the data axis of a mesh on nodes of `ranks_per_node` ranks: `units` are those of one of the
/// `mesh.tensor` groups of ranks that have the same blocks, and move alike.
AxisTraffic data_traffic(const UnitStates& units, const PlannedMesh& mesh, int64_t ranks_per_node, Transport transport,
                         std::span<const WholeTensor> updated = {});

}  // namespace llmtrain
