#pragma once
// Layout of heads, keys and segments, and the definition of a score, for all attention kernels.

#include "kernels/attention.hpp"
#include "kernels/cuda/dropout_row.cuh"

namespace llmtrain::cuda {

/// Arguments of a kernel from qkv and the batch.
template <class T>
struct Rows {
  const T* qkv;
  const int32_t* segments;
  const int64_t* sequences;
  const int32_t* offsets;
  int64_t count, segment_count;
  int heads, kv_heads, head_dim, first_head;
  int64_t window;
  float scale, softcap;
  KernelDropout dropout;

  Rows(const Tensor& t, const Batch& batch, const AttentionShape& s, const Dropout& d)
      : qkv(t.as<T>()),
        segments(batch.segments.empty() ? nullptr : batch.segments.as<int32_t>()),
        sequences(d.active() ? batch.sequence_ids.as<int64_t>() : nullptr),
        offsets(d.active() ? batch.sequence_offsets.as<int32_t>() : nullptr),
        count(batch.tokens),
        segment_count(batch.segment_count),
        heads(static_cast<int>(s.heads)),
        kv_heads(static_cast<int>(s.kv_heads)),
        head_dim(static_cast<int>(s.head_dim)),
        first_head(static_cast<int>(s.first_head)),
        window(s.window),
        scale(s.scale),
        softcap(s.softcap),
        dropout(d) {}

  __device__ int64_t width() const { return int64_t{heads + 2 * kv_heads} * head_dim; }
  __device__ const T* query(int64_t row, int head) const { return qkv + row * width() + int64_t{head} * head_dim; }
  __device__ const T* key(int64_t row, int kv) const { return query(row, heads + kv); }
  __device__ const T* value(int64_t row, int kv) const { return query(row, heads + kv_heads + kv); }

  /// [begin, end) of the segment that contains the row.
  __device__ void segment_of(int64_t row, int64_t& begin, int64_t& end) const {
    int64_t low = 0, high = segment_count;  // segments[low] <= row < segments[high]
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (segments[middle] <= row ? low : high) = middle;
    }
    begin = segments[low];
    end = segments[low + 1];
  }
  /// `resolved` is that of `dropout`.
  __device__ float keep(const KernelDropout& resolved, int64_t query_row, int head, int64_t key_row) const {
    if (sequences == nullptr) return 1.0f;
    const uint64_t element = attention_element(first_head + head, static_cast<uint32_t>(offsets[query_row]),
                                               static_cast<uint32_t>(offsets[key_row]));
    return resolved.factor(static_cast<uint64_t>(sequences[query_row]), element);
  }
  /// For fp32 kernels: the score from a product of query and key, and its derivative by the product.
  __device__ float score(float product, float& slope) const {
    const float s = product * scale;
    slope = scale;
    if (softcap <= 0) return s;
    const float t = tanhf(s / softcap);
    slope = scale * (1 - t * t);
    return softcap * t;
  }
};

}  // namespace llmtrain::cuda
