#pragma once
// Causal attention of B sequences of T tokens each as graphs of cuDNN ("Fused Flash Attention fprop / bprop" in its
// developer guide). The matrices are those of attention.hpp, their rows sequence by sequence, except for lse: [B, H,
// T], since engines before 9.26 assume it packed whatever its strides are.

#include <compare>

#include "core/dtype.hpp"
#include "kernels/cuda/cudnn_graph.hpp"

namespace llmtrain::cuda {

/// Attention problem in bf16 or fp16.
constexpr cudnnDataType_t cudnn_type(DType dtype) {
  return dtype == DType::f16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
}

struct CudnnAttention {
  int64_t batch, length, heads, kv_heads, head_dim;
  cudnnDataType_t type;
  bool backward;
  auto operator<=>(const CudnnAttention&) const = default;
};

/// Ids of tensors for execution.
enum CudnnAttentionId : int64_t {
  id_query = 1,
  id_key,
  id_value,
  id_out,
  id_lse,
  id_scale,
  id_lowest,  ///< score of an invisible key
  id_one,
  id_dout,
  id_dquery,
  id_dkey,
  id_dvalue,
  id_delta,  ///< fp32 [B, H, T], dout . out
};

void build_attention(CudnnGraph& graph, const CudnnAttention& a);

/// Sufficient bytes for the workspace of the backward pass: the derivative of every score, in tiles, and, with fewer
/// key heads, the gradients of each query head. Delta is not included.
int64_t max_cudnn_workspace_bytes(const CudnnAttention& a);

}  // namespace llmtrain::cuda
