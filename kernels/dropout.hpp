#pragma once
#include <cmath>
#include <cstdint>

#include "core/batch.hpp"
#include "core/host_device.hpp"
#include "core/philox.hpp"

namespace llmtrain {

/// A key whose step lies in device memory, so that a graph that is launched again draws the masks of the current step.
struct StepKey {
  const int64_t* step = nullptr;  ///< int64 [1]; null: there is none
  uint64_t seed = 0;
  RandomPurpose purpose = {};
  uint64_t place = 0;  ///< number of the masks' place in the model

  LLMTRAIN_HOST_DEVICE uint64_t key() const { return random_key(seed, purpose, static_cast<uint64_t>(*step), place); }
};

/// Inverted dropout with counter-based masks: whether element e of sample s is kept does not depend on rank, thread or
/// batch.
struct Dropout {
  float probability = 0;  ///< probability of zeroing; 0 = off
  uint64_t key = 0;       ///< random_key(seed, purpose, step, place)
  StepKey step_key = {};  ///< the same key for kernels of a GPU, which prefer it

  bool active() const { return probability > 0; }
  /// Threshold: random bits below it drop an element: (bits + 1/2) / 2^32 < p as integers; every step is exact in
  /// double.
  uint32_t threshold() const { return static_cast<uint32_t>(std::ceil(double{probability} * 0x1p32 - 0.5)); }
  /// 0 or 1 / (1 - p). For row r and channel c of [N, C]: sequence = sequence_ids[r], element = sequence_offsets[r] * C
  /// + c.
  LLMTRAIN_HOST_DEVICE float scale(uint64_t sequence, uint64_t element) const {
    return random_uniform(random_bits(key, sequence, element)) < probability ? 0.0f : 1.0f / (1.0f - probability);
  }
};

}  // namespace llmtrain
