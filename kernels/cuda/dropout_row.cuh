#pragma once
#include "core/batch.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/dropout.hpp"

namespace llmtrain::cuda {

__device__ inline float dropout_factor(const Dropout& dropout, uint32_t word) {
  return random_uniform(word) < dropout.probability ? 0.0f : 1.0f / (1.0f - dropout.probability);
}
/// Dropout::scale, whose random word is indexed; what is indexed lies in local memory here.
__device__ inline float dropout_scale(const Dropout& dropout, uint64_t sequence, uint64_t element) {
  const auto words = philox4x32(dropout.key, sequence, element >> 2);
  const uint32_t even = (element & 2) != 0 ? words.v[2] : words.v[0],
                 odd = (element & 2) != 0 ? words.v[3] : words.v[1];
  return dropout_factor(dropout, (element & 1) != 0 ? odd : even);
}

/// Factors of the elements of [N, C], for kernels.
struct RowDropout {
  Dropout dropout;
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
    return dropout_scale(dropout, static_cast<uint64_t>(sequences[row]), element(row, channel));
  }
  /// Of neighbours in a row, also beyond its end: the row is asked for once, and a block of four random words.
  template <int64_t size>
  __device__ PackOf<size> scales(int64_t row, int64_t channel) const {
    static_assert(size % 4 == 0);
    PackOf<size> factors;
    const uint64_t first = sequences == nullptr ? 0 : element(row, channel);
    if (sequences == nullptr) {
      for (float& factor : factors.v) factor = 1.0f;
    } else if (first % 4 == 0) {
      const auto sequence = static_cast<uint64_t>(sequences[row]);
      LLMTRAIN_UNROLL
      for (int block = 0; block < size / 4; ++block) {
        const auto words = philox4x32(dropout.key, sequence, first / 4 + static_cast<uint64_t>(block));
        LLMTRAIN_UNROLL
        for (int k = 0; k < 4; ++k) factors.v[4 * block + k] = dropout_factor(dropout, words.v[k]);
      }
    } else {
      LLMTRAIN_UNROLL
      for (int k = 0; k < size; ++k) factors.v[k] = scale(row, channel + k);
    }
    return factors;
  }
  /// Of neighbours among `elements`, from i = row * C + channel on; they may go on in the next row.
  template <int64_t size>
  __device__ PackOf<size> scales_at(int64_t i, int64_t elements) const {
    if (sequences == nullptr) return scales<size>(0, 0);
    const int64_t row = i / width, channel = i % width;
    if (channel + size <= width) return scales<size>(row, channel);
    PackOf<size> factors;
    LLMTRAIN_UNROLL
    for (int k = 0; k < size; ++k) {
      const int64_t at = i + k < elements ? i + k : i;  // beyond the end there is no row to ask for
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
