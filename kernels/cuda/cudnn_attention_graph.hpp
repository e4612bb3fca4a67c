#pragma once
// Causal attention of B sequences of T tokens each as graphs of cuDNN ("Fused Flash Attention fprop / bprop" in its
// developer guide). The matrices are those of attention.hpp, their rows sequence by sequence, but for lse: [B, H, T],
// as engines before 9.26 read it packed so whatever its strides are.

#include <compare>

#include "core/dtype.hpp"
#include "kernels/cuda/cudnn_graph.hpp"

namespace llmtrain::cuda {

/// Of bf16 or fp16.
constexpr cudnnDataType_t cudnn_type(DType dtype) {
  return dtype == DType::f16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
}

struct CudnnAttention {
  int64_t batch, length, heads, kv_heads, head_dim;
  cudnnDataType_t type;
  bool backward;
  auto operator<=>(const CudnnAttention&) const = default;
};

/// What execution names.
enum CudnnAttentionId : int64_t {
  id_query = 1,
  id_key,
  id_value,
  id_out,
  id_lse,
  id_scale,
  id_lowest,  ///< a score of what is not seen
  id_one,
  id_dout,
  id_dquery,
  id_dkey,
  id_dvalue,
  id_delta,  ///< fp32 [B, H, T], dout . out
};

void build_attention(CudnnGraph& graph, const CudnnAttention& a);

/// Enough for the workspace of the backward pass, which has the derivative of every score, in tiles, and with fewer key
/// heads the gradients of each query head's. Delta is not in it.
int64_t max_cudnn_workspace_bytes(const CudnnAttention& a);

}  // namespace llmtrain::cuda
