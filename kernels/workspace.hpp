#pragma once
// Memory that kernels use beside their operands: packed panels of matrix products, partial sums over rows. If none is
// set, or too little, they allocate what they need and keep it.

#include <optional>

#include "core/quantization.hpp"
#include "core/tensor.hpp"

namespace llmtrain {

/// Shape of a linear layer's products.
struct LinearPass {
  int64_t in;
  int64_t out;
  bool bias;
  DType compute;
  DType output;  ///< dtype of the forward product's output
  bool forward;
  bool backward;
  int64_t rank = 0;  ///< of products added to the forward product and to the input's gradient (LowRank)
  std::optional<QuantizedType> quantized = {};  ///< storage of the weight, if it has fewer bits
  bool wide_gradient = false;                   ///< the input's gradient is fp32, a term of a sum
};

/// Bytes for 1 to `rows` rows with the current number of threads. On a GPU, whose kernels keep small memory elsewhere,
/// only those of quantised matrices.
int64_t linear_workspace_bytes(const LinearPass& pass, int64_t rows);
/// Bytes for gradients that are summed over the rows of a matrix: `columns` of all together.
int64_t row_sum_workspace_bytes(int64_t rows, int64_t columns);

/// Sets the memory (u8) that the calling thread's kernels use; an empty tensor takes it away.
void set_workspace(const Tensor& memory);
/// The memory that was set last.
Tensor current_workspace();
/// Maximum bytes that they have requested since then: more than the memory has if a plan is too small.
int64_t workspace_peak();
/// Sets the memory for its lifetime, instead of the one that was set before.
class WorkspaceScope {
 public:
  explicit WorkspaceScope(const Tensor& memory) : before_(current_workspace()) { set_workspace(memory); }
  ~WorkspaceScope() { set_workspace(before_); }
  WorkspaceScope(const WorkspaceScope&) = delete;
  WorkspaceScope& operator=(const WorkspaceScope&) = delete;

 private:
  Tensor before_;
};

}  // namespace llmtrain
