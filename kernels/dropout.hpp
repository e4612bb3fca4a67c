#pragma once
#include <cmath>
#include <cstdint>

#include "core/batch.hpp"
#include "core/host_device.hpp"
#include "core/philox.hpp"

namespace llmtrain {

/// Inverted dropout with counter-based masks: whether element e of sample s is kept does not depend on rank, thread or
/// batch.
struct Dropout {
  float probability = 0;  ///< probability of zeroing; 0 = off
  uint64_t key = 0;       ///< random_key(seed, purpose, step, layer)

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
