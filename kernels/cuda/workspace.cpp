#include "kernels/workspace.hpp"

namespace llmtrain {

int64_t linear_workspace_bytes(const LinearPass& /*pass*/, int64_t /*rows*/) { return 0; }
int64_t row_sum_workspace_bytes(int64_t /*rows*/, int64_t /*columns*/) { return 0; }
void set_workspace(const Tensor& /*memory*/) {}
int64_t workspace_peak() { return 0; }

}  // namespace llmtrain
