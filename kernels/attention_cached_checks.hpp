#pragma once
// What a call of attention to a cache must bring, the same on every device.

#include "kernels/attention_cached.hpp"

namespace llmtrain {

inline void check_cache(const Tensor& cache, const Tensor& qkv, const Batch& batch, const AttentionShape& s) {
  LLMTRAIN_CHECK(qkv.rank == 2 && qkv.dim(0) == batch.tokens && qkv.dim(1) == (s.heads + 2 * s.kv_heads) * s.head_dim,
                 "qkv is [N, (H + 2 G) D]");
  LLMTRAIN_CHECK(cache.rank == 3 && cache.dim(2) == 2 * s.kv_heads * s.head_dim && cache.dtype == qkv.dtype,
                 "a cache of keys and values is [S, P, 2 G D] of qkv's dtype");
  LLMTRAIN_CHECK(s.head_dim <= max_head_dim, "a head is too wide");
}

inline void check_cached_output(const Tensor& out, const Tensor& qkv, const AttentionShape& s) {
  LLMTRAIN_CHECK(
      out.rank == 2 && out.dim(0) == qkv.dim(0) && out.dim(1) == s.heads * s.head_dim && out.dtype == qkv.dtype,
      "out is [N, H D] of qkv's dtype");
}

}  // namespace llmtrain
