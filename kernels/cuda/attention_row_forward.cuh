#pragma once
// The forward pass of attention for any head dimension, in fp32: one warp per query.

#include <cmath>
#include <type_traits>

#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/attention_shape.hpp"

namespace llmtrain::cuda {

/// Dot product of row and other, row in shared memory; four partial sums keep rounding errors small.
template <class T>
__device__ float dot(const float* row, const T* other, int n) {
  float sums[Pack::size] = {};
  for (int i = 0; i < n; i += Pack::size) {
    const Pack p = load_pack(other, i, n);
    LLMTRAIN_UNROLL
    for (int k = 0; k < Pack::size; ++k) sums[k] = fmaf(i + k < n ? row[i + k] : 0.0f, p.v[k], sums[k]);
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

template <class T>
__device__ void fetch(float* row, const T* from, int n) {
  for (int d = lane(); d < n; d += warp_lanes) row[d] = load(from + d);
}

/// acc[i] (element lane + 32 i) += sum of weights[j] row(j)[element], j < count.
template <int registers, class Row>
__device__ void add_rows(float (&acc)[registers], const float* weights, int count, int n, const Row& row) {
  for (int j = 0; j < count; ++j) {
    const auto* from = row(j);
    const float weight = weights[j];
    LLMTRAIN_UNROLL
    for (int i = 0; i < registers; ++i) {
      const int d = lane() + warp_lanes * i;
      if (d < n) acc[i] = fmaf(weight, load(from + d), acc[i]);
    }
  }
}
template <int registers, class T>
__device__ void store_row(T* to, const float (&acc)[registers], float factor, int n) {
  LLMTRAIN_UNROLL
  for (int i = 0; i < registers; ++i) {
    const int d = lane() + warp_lanes * i;
    if (d < n) store(to + d, acc[i] * factor);
  }
}

__device__ inline float* own_shared(int floats) {
  return dynamic_shared<float>() + (threadIdx.x / warp_lanes) * floats;
}

/// The keys of one head and sequence; the query is at `position`, or nowhere if that is negative.
template <class T>
struct KeyRows {
  const T *keys, *values;  ///< at position 0
  int64_t stride, position;

  __device__ const T* key(int64_t at) const { return keys + at * stride; }
  __device__ const T* value(int64_t at) const { return values + at * stride; }
};

/// Keys of the query's own segment.
template <class T>
struct SegmentKeys {
  __device__ KeyRows<T> of(const Rows<T>& rows, int64_t row, int kv) const {
    int64_t begin = 0, end = 0;
    rows.segment_of(row, begin, end);
    return {rows.key(begin, kv), rows.value(begin, kv), rows.width(), row - begin};
  }
};

/// One warp per (query row, head); blockIdx.y is the head.
template <class T, int registers, class Keys>
struct RowForward {
  static constexpr int threads = row_warps * warp_lanes;
  Rows<T> rows;
  Keys source;  ///< of(rows, row, key head)
  T* out;
  float* lse;  ///< may be null

  __device__ void operator()() const {
    const int64_t row = int64_t{blockIdx.x} * row_warps + threadIdx.x / warp_lanes;
    if (row >= rows.count) return;
    const int head = static_cast<int>(blockIdx.y), kv = head / (rows.heads / rows.kv_heads), n = rows.head_dim;
    float* query = own_shared(row_shared_floats(n, 1, 1));
    float* weights = query + n;
    fetch(query, rows.query(row, head), n);
    __syncwarp();
    const KeyRows<T> own = source.of(rows, row, kv);
    const int64_t position = own.position;
    const int64_t begin = rows.window > 0 && position >= rows.window ? position - rows.window + 1 : 0;
    const KernelDropout dropout = rows.dropout.resolved();
    float acc[registers] = {};
    float highest = -INFINITY, sum = 0;  // sum over this lane's keys
    for (int64_t first = begin; first <= position; first += warp_lanes) {
      const int64_t key = first + lane();
      const int keys = static_cast<int>(position - first + 1 < warp_lanes ? position - first + 1 : warp_lanes);
      float slope = 0;
      const float s = lane() < keys ? rows.score(dot(query, own.key(key), n), slope) : -INFINITY;
      const float now = fmaxf(highest, warp_maximum(s)), shrink = expf(highest - now);
      const float p = lane() < keys ? expf(s - now) : 0.0f;
      highest = now;
      sum = fmaf(sum, shrink, p);
      LLMTRAIN_UNROLL
      for (int i = 0; i < registers; ++i) acc[i] *= shrink;
      weights[lane()] = lane() < keys ? p * rows.keep(dropout, row, head, row - position + key) : 0.0f;
      __syncwarp();
      add_rows(acc, weights, keys, n, [&](int j) { return own.value(first + j); });
      __syncwarp();
    }
    sum = warp_sum(sum);
    store_row(out + (row * rows.heads + head) * n, acc, 1 / sum, n);
    if (lane() == 0 && lse != nullptr) lse[head * rows.count + row] = highest + logf(sum);
  }
};

/// Calls f(std::integral_constant of the registers that a lane needs for a row of the head).
template <class F>
void with_registers(int64_t head_dim, const F& f) {
  switch (row_registers(head_dim)) {
    case 1:
      return f(std::integral_constant<int, 1>{});
    case 2:
      return f(std::integral_constant<int, 2>{});
    case 4:
      return f(std::integral_constant<int, 4>{});
    case 8:
      return f(std::integral_constant<int, 8>{});
    default:
      return f(std::integral_constant<int, 32>{});
  }
}
/// Calls f(std::integral_constant of the columns of a tile).
template <class F>
void with_columns(int64_t head_dim, const F& f) {
  switch (tile_columns(head_dim)) {
    case 32:
      return f(std::integral_constant<int, 32>{});
    case 64:
      return f(std::integral_constant<int, 64>{});
    case 96:
      return f(std::integral_constant<int, 96>{});
    case 128:
      return f(std::integral_constant<int, 128>{});
    default:
      return f(std::integral_constant<int, 256>{});
  }
}

/// True if tensor cores are used.
inline bool is_tiled(const Tensor& qkv, const AttentionShape& s) {
  return qkv.dtype != DType::f32 && s.head_dim <= max_tiled;
}
/// Calls f(pointer of the 16-bit element type).
template <class F>
void with_half(const Tensor& qkv, const F& f) {
  qkv.dtype == DType::bf16 ? f(static_cast<bf16*>(qkv.data)) : f(static_cast<f16*>(qkv.data));
}
}  // namespace llmtrain::cuda
