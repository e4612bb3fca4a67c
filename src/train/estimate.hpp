#pragma once
#include <optional>
#include <string>

#include "core/arena.hpp"

namespace llmtrain {

/// What --measure adds, seconds. Start-up, checkpoints and samples are not in it.
struct Prediction {
  double step = 0;
  int64_t measured = 0;  ///< steps
  double evaluation = 0;
  int64_t steps = 0, evaluations = 0;  ///< of the run
  double tokens_per_step = 0;

  double run() const { return step * static_cast<double>(steps) + evaluation * static_cast<double>(evaluations); }
};

/// What --estimate says: bytes of one rank by category, and of a node that is full.
struct Estimate {
  /// A node that has the ranks that are left.
  struct LastNode {
    int64_t ranks;
    int64_t rank_bytes;  ///< the plan and library_bytes
  };

  const Arena* plan = nullptr;
  int64_t parameters = 0;
  int64_t state_bytes = 0;      ///< of a checkpoint, all ranks
  int64_t offloaded_bytes = 0;  ///< of a rank, in parallel.offload_path
  int64_t pinned_bytes = 0;     ///< of a rank, in memory of the host beside the plan, which is of a GPU's then
  int64_t ranks = 1;
  int64_t ranks_per_node = 1;
  int64_t library_bytes = 0;  ///< of a rank, beside the plan: the process and what libraries take for themselves
  int64_t spared_bytes = 0;   ///< of those: a run goes without them where there is no room
  int64_t limit = 0;          ///< memory.limit; 0 = none
  std::optional<LastNode> last_node = {};  ///< where the ranks do not fill it
  std::optional<Prediction> time = {};
};

/// UserError(deck) when a node's bytes cannot be counted, which is for rank 0 to tell the others.
std::string estimate_text(const Estimate& estimate);
std::string estimate_json(const Estimate& estimate);

/// By as much the memory of the process itself may differ from one start to the next: a limit that --estimate has just
/// told as the total suffices.
inline constexpr int64_t between_starts = int64_t{512} << 10;
/// Throws UserError(deck) before anything is allocated when `bytes` of a rank exceed `limit` (0: none) by more or the
/// rank's `share` of its node or GPU. `where` names the key of the limit.
void check_memory(int64_t bytes, int64_t limit, int64_t share, const std::string& where);

}  // namespace llmtrain
