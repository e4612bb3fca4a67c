#pragma once
// Dropout of a warp's attention scores. Four keys share an evaluation of Philox; if the offsets of a segment's rows
// begin at a multiple of 4, lanes with the same four keys share it.

#include "kernels/cuda/dropout_row.cuh"

namespace llmtrain::cuda {

/// Row numbers are those in a segment. Results: bit 4 i + e belongs to scores[i][e] (mma.cuh: C).
struct SegmentDropout {
  KernelDropout dropout;  ///< resolved
  uint64_t sequence;
  int head, offset;  ///< offset of the first row; the others are consecutive

  /// Bits for scores [16 queries, 8 tiles keys].
  template <int tiles>
  __device__ uint32_t kept_keys(int query, int key) const {
    const int g = lane() / 4, t = lane() % 4;
    uint32_t kept = 0;
    if (offset % 4 != 0) {
      LLMTRAIN_UNROLL_BY(1)
      for (int bit = 0; bit < 4 * tiles; ++bit) {
        kept |= keeps(query + g + bit / 2 % 2 * 8, key + bit / 4 * 8 + 2 * t + bit % 2) << bit;
      }
      return kept;
    }
    const int half = t % 2;  // two lanes share their keys, with two queries
    uint32_t own = 0;
    LLMTRAIN_UNROLL_BY(2)
    for (int i = 0; i < tiles; ++i) own |= kept_of_four(query + g + 8 * half, key + 8 * i + t / 2 * 4) << 4 * i;
    LLMTRAIN_UNROLL
    for (int e = 0; e < 4; e += 2) {
      const uint32_t row = __shfl_sync(0xFFFFFFFFu, own, lane() - half + e / 2);
      kept |= (row >> 2 * half & 0x33333333u) << e;
    }
    return kept;
  }
  /// Bits for scores [16 keys, 8 tiles queries].
  template <int tiles>
  __device__ uint32_t kept_queries(int query, int key) const {
    const int g = lane() / 4, t = lane() % 4;
    uint32_t kept = 0;
    if (offset % 4 != 0) {
      LLMTRAIN_UNROLL_BY(1)
      for (int bit = 0; bit < 4 * tiles; ++bit) {
        kept |= keeps(query + bit / 4 * 8 + 2 * t + bit % 2, key + g + bit / 2 % 2 * 8) << bit;
      }
      return kept;
    }
    const int which = g % 4;  // four lanes share two groups of four keys, with two queries
    uint32_t own = 0;
    LLMTRAIN_UNROLL_BY(2)
    for (int i = 0; i < tiles; ++i) {
      own |= kept_of_four(query + 8 * i + 2 * t + which % 2, key + g - which + which / 2 * 8) << 4 * i;
    }
    LLMTRAIN_UNROLL
    for (int e = 0; e < 4; ++e) {
      const uint32_t four = __shfl_sync(0xFFFFFFFFu, own, lane() + 4 * (e - which));
      kept |= (four >> which & 0x11111111u) << e;
    }
    return kept;
  }
  /// Bit of one element.
  __device__ float factor(uint32_t kept, int bit) const { return (kept >> bit & 1) != 0 ? dropout.scale : 0.0f; }

 private:
  __device__ uint64_t element(int query, int key) const {
    return attention_element(head, static_cast<uint32_t>(offset + query), static_cast<uint32_t>(offset + key));
  }
  __device__ uint32_t keeps(int query, int key) const {
    return dropout.keeps(dropout.word(sequence, element(query, key))) ? 1 : 0;
  }
  /// For a first key whose offset is a multiple of 4.
  __device__ uint32_t kept_of_four(int query, int key) const {
    const Philox4 words = philox4x32(dropout.fixed_key, sequence, element(query, key) >> 2);
    uint32_t kept = 0;
    LLMTRAIN_UNROLL
    for (int k = 0; k < 4; ++k) kept |= (dropout.keeps(words.v[k]) ? 1U : 0U) << k;
    return kept;
  }
};

}  // namespace llmtrain::cuda
