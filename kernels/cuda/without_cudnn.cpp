// Where cuDNN's headers were not found: attention is ours.

#include "kernels/cuda/cudnn_attention.hpp"

namespace llmtrain {

std::string attention_library() { return {}; }

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
