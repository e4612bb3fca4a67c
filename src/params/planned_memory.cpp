#include "params/planned_memory.hpp"

#include <algorithm>

namespace llmtrain {

PlannedMemory::PlannedMemory(Arena& arena, Communicator& communicator) {
  const int64_t shared = arena.shared_bytes();
  const bool shares = communicator.sharing_ranks() > 1 || communicator.adding_ranks_per_node() > 1;
  if (shared > 0 && shares) shared_ = communicator.allocate_shared(shared);
  if (shared_ == nullptr) {
    own_ = DeviceBuffer(arena.bytes());
    arena.commit(own_.data());
  } else {
    own_ = DeviceBuffer(std::max<int64_t>(arena.bytes() - shared, 64));
    arena.commit(shared_.get(), own_.data());
  }
  workspace_.emplace(arena.workspace());
  workspace_bytes_ = arena.workspace().bytes();
}

int64_t PlannedMemory::unplanned_bytes() const {
  const int64_t requested = workspace_peak();
  return requested > workspace_bytes_ ? requested : 0;
}

}  // namespace llmtrain
