#pragma once
#include "core/batch.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/dropout.hpp"

namespace llmtrain::cuda {

/// Dropout in kernels: words are compared as integers, with the same result as Dropout::scale.
struct KernelDropout {
  uint64_t fixed_key;
  StepKey step_key;
  uint32_t threshold;
  float scale;  ///< scale of kept elements

  explicit KernelDropout(const Dropout& d)
      : fixed_key(d.key), step_key(d.step_key), threshold(d.threshold()), scale(1.0f / (1.0f - d.probability)) {}

  __device__ uint64_t key() const { return step_key.step == nullptr ? fixed_key : step_key.key(); }
  /// The same with its key made once, for loops.
  __device__ KernelDropout resolved() const {
    KernelDropout copy = *this;
    copy.fixed_key = key();
    copy.step_key.step = nullptr;
    return copy;
  }

  __device__ bool keeps(uint32_t word) const { return word >= threshold; }
  __device__ float factor(uint32_t word) const { return keeps(word) ? scale : 0.0f; }
  /// One word of random_bits(); an indexed array would lie in local memory here.
  __device__ uint32_t word(uint64_t sequence, uint64_t element) const {
    const auto words = philox4x32(key(), sequence, element >> 2);
    const uint32_t even = (element & 2) != 0 ? words.v[2] : words.v[0],
                   odd = (element & 2) != 0 ? words.v[3] : words.v[1];
    return (element & 1) != 0 ? odd : even;
  }
  __device__ float factor(uint64_t sequence, uint64_t element) const { return factor(word(sequence, element)); }
};

/// Scale of an attention score.
__device__ inline uint64_t attention_element(int head, uint32_t query_offset, uint32_t key_offset) {
  return (((static_cast<uint64_t>(head) << 24) + query_offset) << 24) + key_offset;
}

/// Factors of the elements of [N, C], for kernels.
struct RowDropout {
  KernelDropout dropout;
  const int64_t* sequences;
  const int32_t* offsets;
  int64_t width;

  RowDropout(const Dropout& d, const Batch& batch, int64_t channels)
      : dropout(d),
        sequences(d.active() ? batch.sequence_ids.as<int64_t>() : nullptr),
        offsets(d.active() ? batch.sequence_offsets.as<int32_t>() : nullptr),
        width(channels) {}

  __device__ float scale(int64_t row, int64_t channel) const {
    if (sequences == nullptr) return 1.0f;
    return dropout.factor(static_cast<uint64_t>(sequences[row]), element(row, channel));
  }
  /// Scales of neighbours in a row, also past its end: one call per row, and per block of four random words.
  template <int64_t size>
  __device__ PackOf<size> scales(int64_t row, int64_t channel) const {
    static_assert(size % 4 == 0);
    PackOf<size> factors;
    const uint64_t first = sequences == nullptr ? 0 : element(row, channel);
    if (sequences == nullptr) {
      for (float& factor : factors.v) factor = 1.0f;
    } else if (first % 4 == 0) {
      const auto sequence = static_cast<uint64_t>(sequences[row]);
      const uint64_t key = dropout.key();
      LLMTRAIN_UNROLL
      for (int block = 0; block < size / 4; ++block) {
        const auto words = philox4x32(key, sequence, first / 4 + static_cast<uint64_t>(block));
        LLMTRAIN_UNROLL
        for (int k = 0; k < 4; ++k) factors.v[4 * block + k] = dropout.factor(words.v[k]);
      }
    } else {
      LLMTRAIN_UNROLL
      for (int k = 0; k < size; ++k) factors.v[k] = scale(row, channel + k);
    }
    return factors;
  }
  /// Scales of neighbours among `elements`, from i = row * C + channel on; they may extend into the next row.
  template <int64_t size>
  __device__ PackOf<size> scales_at(int64_t i, int64_t elements) const {
    if (sequences == nullptr) return scales<size>(0, 0);
    const int64_t row = i / width, channel = i % width;
    if (channel + size <= width) return scales<size>(row, channel);
    PackOf<size> factors;
    LLMTRAIN_UNROLL
    for (int k = 0; k < size; ++k) {
      const int64_t at = i + k < elements ? i + k : i;  // past the end there is no row to look up
      factors.v[k] = scale(at / width, at % width);
    }
    return factors;
  }

 private:
  __device__ uint64_t element(int64_t row, int64_t channel) const {
    return static_cast<uint64_t>(offsets[row]) * static_cast<uint64_t>(width) + static_cast<uint64_t>(channel);
  }
};

}  // namespace llmtrain::cuda
