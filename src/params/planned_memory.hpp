#pragma once
#include <memory>
#include <optional>

#include "core/arena.hpp"
#include "device/device.hpp"
#include "kernels/workspace.hpp"
#include "parallel/communicator.hpp"

namespace llmtrain {

/// The memory of a plan, its workspace lent to the kernels of the thread that makes this. What ranks of a node read of
/// each other is shared where the plan has any and the communicator can; see Communicator::sharing_refusal().
class PlannedMemory {
 public:
  /// Collective; commits the plan.
  PlannedMemory(Arena& arena, Communicator& communicator);

 private:
  std::shared_ptr<void> shared_;
  DeviceBuffer own_;
  std::optional<WorkspaceScope> workspace_;
};

}  // namespace llmtrain
