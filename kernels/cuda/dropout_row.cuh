#pragma once
#include "core/batch.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/dropout.hpp"

namespace llmtrain::cuda {

/// Dropout::scale, whose random word is indexed; what is indexed lies in local memory here.
__device__ inline float dropout_scale(const Dropout& dropout, uint64_t sequence, uint64_t element) {
  const auto words = philox4x32(dropout.key, sequence, element >> 2);
  const uint32_t even = (element & 2) != 0 ? words.v[2] : words.v[0],
                 odd = (element & 2) != 0 ? words.v[3] : words.v[1];
  const double uniform = random_uniform((element & 1) != 0 ? odd : even);
  return uniform < dropout.probability ? 0.0f : 1.0f / (1.0f - dropout.probability);
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
    return dropout_scale(
        dropout, static_cast<uint64_t>(sequences[row]),
        static_cast<uint64_t>(offsets[row]) * static_cast<uint64_t>(width) + static_cast<uint64_t>(channel));
  }
  /// Of element i = row * C + channel.
  __device__ float scale(int64_t i) const { return sequences == nullptr ? 1.0f : scale(i / width, i % width); }
};

}  // namespace llmtrain::cuda
