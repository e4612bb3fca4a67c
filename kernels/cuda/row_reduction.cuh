#pragma once
// Reductions over the threads of a block that has one row of logits.

#include <bit>
#include <cstdint>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/shared_memory.cuh"

namespace llmtrain::cuda {

inline constexpr int row_threads = 512;  ///< one block per row
inline constexpr int row_warps = row_threads / warp_lanes;

/// Folds f(running result, result of a warp) over the warps in order; the same in all threads.
template <class T, class F>
__device__ T fold_warps(T of_warp, const F& f) {
  LLMTRAIN_SHARED(T[row_warps], of_warps);
  __syncthreads();  // those of the last call have been read
  if (lane() == 0) of_warps[threadIdx.x / warp_lanes] = of_warp;
  __syncthreads();
  T result = of_warps[0];
  for (int warp = 1; warp < row_warps; ++warp) result = f(result, of_warps[warp]);
  return result;
}
template <class T>
__device__ T row_sum(T x) {
  return fold_warps(warp_sum(x), [](T a, T b) { return a + b; });
}
template <class T>
__device__ T row_maximum(T x) {
  return fold_warps(warp_maximum(x), [](T a, T b) { return b > a ? b : a; });
}

/// The highest logit and its index in one integer: ordered by the logit, then lowest index first.
__device__ inline uint64_t ordered_key(float x, int index) {
  const auto bits = std::bit_cast<uint32_t>(x + 0.0f);  // merges both zeros
  const uint32_t ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | static_cast<uint32_t>(INT32_MAX - index);
}
__device__ inline int index_of(uint64_t key) { return INT32_MAX - static_cast<int>(key & 0xFFFFFFFFu); }

}  // namespace llmtrain::cuda
