#pragma once
// Checks of the arguments of attention, the same on every device.

#include "kernels/attention.hpp"
#include "kernels/attention_cached.hpp"

namespace llmtrain {

inline constexpr int64_t max_heads = 65535;  ///< limit of a GPU's grid in its second dimension

inline void check_attention_shape(const AttentionShape& s) {
  LLMTRAIN_CHECK(s.heads > 0 && s.kv_heads > 0 && s.heads % s.kv_heads == 0, "heads must be a multiple of kv_heads");
  LLMTRAIN_CHECK(s.heads <= max_heads, "too many heads");
  LLMTRAIN_CHECK(s.head_dim > 0 && s.head_dim <= max_head_dim, "head_dim is out of range");
  LLMTRAIN_CHECK(s.window >= 0 && s.scale > 0 && s.softcap >= 0,
                 "window and softcap must not be negative, scale must be positive");
}

inline void check_attention(const Tensor& qkv, const Batch& batch, const AttentionShape& shape,
                            const Dropout& dropout) {
  check_attention_shape(shape);
  LLMTRAIN_CHECK(qkv.rank == 2 && qkv.dim(1) == (shape.heads + 2 * shape.kv_heads) * shape.head_dim,
                 "qkv must be [N, (H + 2 G) D]");
  LLMTRAIN_CHECK(is_compute_type(qkv.dtype), "qkv must be fp32, bf16 or fp16");
  LLMTRAIN_CHECK(batch.tokens == qkv.dim(0) && batch.segment_count <= batch.tokens,
                 "qkv and the batch differ in rows, or there are empty segments");
  LLMTRAIN_CHECK(dropout.probability >= 0 && dropout.probability < 1, "dropout probability must be in [0, 1)");
}

inline void check_attention_output(const Tensor& out, const Tensor& lse, const Tensor& qkv,
                                   const AttentionShape& shape) {
  LLMTRAIN_CHECK(out.dtype == qkv.dtype && out.numel() == qkv.dim(0) * shape.heads * shape.head_dim,
                 "out must be [N, H D] in qkv's dtype");
  LLMTRAIN_CHECK(lse.dtype == DType::f32 && lse.numel() == shape.heads * qkv.dim(0), "lse must be fp32 [H, N]");
}

inline void check_attention_gradients(const AttentionBackward& a, const AttentionShape& shape) {
  check_attention_output(a.out, a.lse, a.qkv, shape);
  LLMTRAIN_CHECK(a.dqkv.dtype == a.qkv.dtype && a.dqkv.numel() == a.qkv.numel(), "dqkv must be like qkv");
  LLMTRAIN_CHECK(a.dout.dtype == a.qkv.dtype && a.dout.numel() == a.out.numel(), "dout must be [N, H D], like qkv");
}

inline void check_cache(const Tensor& cache, const Tensor& qkv, const Batch& batch, const AttentionShape& s) {
  LLMTRAIN_CHECK(qkv.rank == 2 && qkv.dim(0) == batch.tokens && qkv.dim(1) == (s.heads + 2 * s.kv_heads) * s.head_dim,
                 "qkv is [N, (H + 2 G) D]");
  LLMTRAIN_CHECK(cache.rank == 3 && cache.dim(2) == 2 * s.kv_heads * s.head_dim && cache.dtype == qkv.dtype,
                 "a cache of keys and values is [S, P, 2 G D] of qkv's dtype");
  LLMTRAIN_CHECK(s.head_dim <= max_head_dim, "a head is too wide");
}

inline void check_cached_output(const Tensor& out, const Tensor& lse, const Tensor& qkv, const AttentionShape& s) {
  LLMTRAIN_CHECK(
      out.rank == 2 && out.dim(0) == qkv.dim(0) && out.dim(1) == s.heads * s.head_dim && out.dtype == qkv.dtype,
      "out is [N, H D] of qkv's dtype");
  LLMTRAIN_CHECK(lse.dtype == DType::f32 && lse.numel() == s.heads * qkv.dim(0), "lse is fp32 [H, N]");
}

}  // namespace llmtrain
