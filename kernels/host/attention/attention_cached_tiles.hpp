#pragma once
// Attention to cached keys and values in the order of attention_forward.

#include "kernels/attention_cached.hpp"
#include "kernels/host/lanes.hpp"

namespace llmtrain::host {

/// Index of a row's token in the cache, counted over all its sequences. cache_keys_values, which is called first, has
/// checked it. (Nothing may throw inside a parallel loop.)
inline int64_t place_of(const Tensor& cache, const Batch& batch, int64_t row) {
  return batch.sequence_ids.as<int64_t>()[row] * cache.dim(1) + batch.positions.as<int32_t>()[row];
}

/// Product of a query and a cached key, scaled and capped.
template <class T>
float score_of(const T* query, const T* key, const AttentionShape& s) {
  auto score = static_cast<float>(
      lane_sum(s.head_dim, [&](int64_t i, int64_t n) { return load_up_to(query + i, n) * load_up_to(key + i, n); }));
  score *= s.scale;
  return s.softcap > 0 ? s.softcap * std::tanh(score / s.softcap) : score;
}

/// attention_cached() with a role other than decoding.
void attention_cached_tiles(const Tensor& out, const Tensor& qkv, const Tensor& cache, const Batch& batch,
                            const AttentionShape& shape);

}  // namespace llmtrain::host
