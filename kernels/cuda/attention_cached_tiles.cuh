#pragma once
// Tokens in a cache of keys and values, and attention to them in the order of attention_forward.

#include "kernels/attention_cached.hpp"
#include "kernels/cuda/launch.cuh"

namespace llmtrain::cuda {

/// Visible rows of the cache for a query.
struct Places {
  const int64_t* sequences;
  const int32_t* positions;
  int64_t rows, capacity, window;

  Places(const Tensor& cache, const Batch& batch, const AttentionShape& s)
      : sequences(batch.sequence_ids.as<int64_t>()),
        positions(batch.positions.as<int32_t>()),
        rows(cache.dim(0)),
        capacity(cache.dim(1)),
        window(s.window) {}
  /// A token without a cache entry is not stored and attends to nothing: its output is NaN.
  __device__ bool inside(int64_t row) const {
    return sequences[row] >= 0 && sequences[row] < rows && positions[row] >= 0 && positions[row] < capacity;
  }
  __device__ int64_t own(int64_t row) const { return sequences[row] * capacity + positions[row]; }
  __device__ int64_t first(int64_t row) const {
    return own(row) - (window > 0 ? std::min<int64_t>(window - 1, positions[row]) : positions[row]);
  }
};

/// attention_cached() with a role other than decoding.
void attention_cached_tiles(const Tensor& out, const Tensor& lse, const Tensor& qkv, const Tensor& cache,
                            const Batch& batch, const AttentionShape& shape, Stream& stream);

}  // namespace llmtrain::cuda
