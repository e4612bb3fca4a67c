#pragma once
// Memory that kernels hold beside their operands: packed panels of matrix products, partial sums over rows. Where
// nothing is lent, or too little, they allocate what they need and keep it.

#include "core/tensor.hpp"

namespace llmtrain {

/// Products of a linear layer.
struct LinearPass {
  int64_t in;
  int64_t out;
  bool bias;
  DType compute;
  DType output;  ///< of the forward pass
  bool forward;
  bool backward;
};

/// Bytes that it takes with 1 to `rows` rows, by as many threads as there are now. 0 on devices whose kernels keep
/// theirs elsewhere.
int64_t linear_workspace_bytes(const LinearPass& pass, int64_t rows);
/// Of gradients that are summed over the rows of a matrix: `columns` of all together.
int64_t row_sum_workspace_bytes(int64_t rows, int64_t columns);

/// From here on the calling thread's kernels use `memory` (u8); an empty one ends that.
void lend_workspace(const Tensor& memory);
/// The most bytes that they have asked for since then.
int64_t workspace_peak();

/// Lends it as long as this lives.
class WorkspaceScope {
 public:
  explicit WorkspaceScope(const Tensor& memory) { lend_workspace(memory); }
  ~WorkspaceScope() { lend_workspace(Tensor()); }
  WorkspaceScope(const WorkspaceScope&) = delete;
  WorkspaceScope& operator=(const WorkspaceScope&) = delete;
};

}  // namespace llmtrain
