#pragma once
#include <memory>
#include <optional>

#include "core/arena.hpp"
#include "device/device.hpp"
#include "kernels/workspace.hpp"
#include "parallel/communicator.hpp"

namespace llmtrain {

/// Allocated memory of a plan; its workspace is set for kernels of the creating thread. Buffers that ranks of a node
/// read from each other are shared memory if the plan has any and the communicator supports it; see
/// Communicator::sharing_refusal().
class PlannedMemory {
 public:
  /// Collective; commits the plan.
  PlannedMemory(Arena& arena, Communicator& communicator);
  /// Bytes that kernels allocated for themselves, since they needed more workspace than was planned; 0 if the plan is
  /// right.
  int64_t unplanned_bytes() const;

 private:
  std::shared_ptr<void> shared_;
  DeviceBuffer own_;
  std::optional<WorkspaceScope> workspace_;
  int64_t workspace_bytes_ = 0;
};

}  // namespace llmtrain
