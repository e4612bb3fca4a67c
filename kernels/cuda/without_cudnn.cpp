// Build without cuDNN's headers: only the built-in attention.

#include "kernels/cuda/cudnn_attention.hpp"

namespace llmtrain {

std::string attention_library() {
  cuda::refuse_missing_cudnn(cuda::attention_choice(),
                             "this program was built without the headers of cuDNN 9.8 or newer. Build it with them");
  return {};
}

std::string attention_assumption(const AttentionShape& /*shape*/, int64_t /*rows*/) { return {}; }

namespace cuda {

int64_t cudnn_workspace_bytes(const AttentionShape& /*shape*/, int64_t /*rows*/) { return 0; }

bool cudnn_attention_forward(const Tensor& /*out*/, const Tensor& /*lse*/, const Tensor& /*qkv*/,
                             const Batch& /*batch*/, const AttentionShape& /*shape*/, const Dropout& /*dropout*/,
                             const Tensor& /*workspace*/, Stream& /*stream*/) {
  return false;
}
bool cudnn_attention_backward(const AttentionBackward& /*args*/, const Batch& /*batch*/,
                              const AttentionShape& /*shape*/, const Dropout& /*dropout*/, const Tensor& /*workspace*/,
                              Stream& /*stream*/) {
  return false;
}

}  // namespace cuda

}  // namespace llmtrain
