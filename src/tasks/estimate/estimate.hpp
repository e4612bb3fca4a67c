#pragma once
#include <optional>
#include <string>

#include "core/arena.hpp"
#include "layers/memory_config.hpp"
#include "parallel/mesh_shape.hpp"
#include "parallel/parallel_config.hpp"
#include "tasks/estimate/network.hpp"

namespace llmtrain {

/// Predicted times in seconds from --measure. Start-up, checkpoints and samples are excluded.
struct Prediction {
  double step = 0;
  int64_t measured = 0;  ///< number of measured steps
  double evaluation = 0;
  int64_t steps = 0, evaluations = 0;  ///< numbers in the run
  double tokens_per_step = 0;

  double run() const { return step * static_cast<double>(steps) + evaluation * static_cast<double>(evaluations); }
};

/// Memory and time of a step of a mesh.
struct MeshCost {
  int64_t rank_bytes = 0;  ///< memory of the largest rank
  bool fits = true;
  double step_seconds = 0;    ///< 0: unknown
  double serial_seconds = 0;  ///< without any overlap of transfers and computing; of transfers alone if that is unknown
  double work = 0;            ///< FLOPs of the rank that has most
};

/// A mesh that --estimate has considered for the ranks of a new run.
struct MeshChoice {
  PlannedMesh mesh;
  int64_t zero = 1;
  Recompute recompute = Recompute::none;
  Reduction reduction = Reduction::ordered;
  MeshCost cost;

  /// Keys of a deck with their values.
  std::string settings() const;
};

/// Result of --estimate: bytes of one rank by category, and of a full node.
struct Estimate {
  /// The last node, which has the remaining ranks.
  struct LastNode {
    int64_t ranks;
    int64_t rank_bytes;  ///< sum of the plan and library_bytes
  };

  const Arena* plan = nullptr;
  int64_t parameters = 0;
  int64_t trained_parameters = 0;
  int64_t state_bytes = 0;      ///< size of a checkpoint, over all ranks
  int64_t offloaded_bytes = 0;  ///< per rank, in parallel.offload_path
  int64_t cache_bytes = 0;      ///< of the teacher's log-probabilities in data.cache, at most
  int64_t pinned_bytes = 0;     ///< per rank, pinned host memory beside the plan, which then counts GPU memory
  int64_t ranks = 1;
  int64_t ranks_per_node = 1;
  PlannedMesh mesh = {};                   ///< of the ranks
  int64_t library_bytes = 0;               ///< per rank, beside the plan: memory of the process and its libraries
  int64_t spared_bytes = 0;                ///< part of library_bytes that a run can do without
  int64_t limit = 0;                       ///< memory.limit; 0 = none
  std::optional<LastNode> last_node = {};  ///< set if the ranks do not fill the last node
  std::optional<Prediction> time = {};
  std::optional<TrafficEstimate> traffic = {};  ///< set if the task trains
  std::optional<MeshChoice> proposal = {};      ///< the fastest mesh that fits, else the one that needs least memory
};

// They throw UserError(deck) when a node's bytes overflow; rank 0 must tell the others.
int64_t bytes_of_node(const Estimate& estimate);  ///< memory of a full node
std::string estimate_text(const Estimate& estimate);
std::string estimate_json(const Estimate& estimate);

}  // namespace llmtrain
