#pragma once
// Checks, before anything is allocated, that a job has room.

#include <cstdint>
#include <optional>
#include <string>

#include "core/arena.hpp"
#include "parallel/communicator.hpp"
#include "params/param_store.hpp"

namespace llmtrain {

/// Tolerance for the memory of the process itself, which may vary between starts: a limit equal to the total of
/// --estimate is then sufficient.
inline constexpr int64_t between_starts = int64_t{512} << 10;
/// Throws UserError(deck) before anything is allocated when `bytes` of a rank exceed `limit` (0: none) by more than the
/// tolerance, or the rank's `share` of its node or GPU. `where` names the key of the limit.
void check_memory(int64_t bytes, int64_t limit, int64_t share, const std::string& where);

/// Number of ranks that use this rank's device, this one included. Collective.
int64_t ranks_of_device(Communicator& communicator);

/// Limits of a rank's memory beside those of its machine.
struct MemoryLimits {
  int64_t limit = 0;                   ///< memory.limit; 0: none
  std::string where;                   ///< place of that key in the deck
  std::optional<DType> profiled = {};  ///< set if the steps are profiled: the dtype of their products
};
/// Throws UserError(deck) on all ranks when the plan is too large for one of them. Collective.
void check_plan(const Arena& plan, const MemoryLimits& limits, Communicator& communicator);
/// Returns true if check_plan() accepts the plan. Collective.
bool fits_plan(const Arena& plan, const MemoryLimits& limits, Communicator& communicator);
/// Collective. Throws UserError(deck) if a rank of a GPU needs more `bytes` of its node's memory than its share.
void check_host_memory(int64_t bytes, Communicator& communicator);
/// Creates this rank's file in parallel.offload_path; without it the start of training does. `where`: place of that key
/// in the deck. Collective.
void reserve_disk(OffloadStore& store, const std::string& folder, const std::string& where, Communicator& communicator);

}  // namespace llmtrain
