#pragma once
// Attention to cached keys and values in the order of attention_forward.

#include "kernels/attention_cached.hpp"

namespace llmtrain::host {

/// Index of a row's token in the cache, counted over all its sequences. cache_keys_values, which is called first, has
/// checked it. (Nothing may throw inside a parallel loop.)
inline int64_t place_of(const Tensor& cache, const Batch& batch, int64_t row) {
  return batch.sequence_ids.as<int64_t>()[row] * cache.dim(1) + batch.positions.as<int32_t>()[row];
}

/// attention_cached() with a role other than decoding.
void attention_cached_tiles(const Tensor& out, const Tensor& qkv, const Tensor& cache, const Batch& batch,
                            const AttentionShape& shape);

}  // namespace llmtrain::host
