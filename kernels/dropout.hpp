#pragma once
#include <cstdint>

#include "core/batch.hpp"
#include "core/host_device.hpp"
#include "core/philox.hpp"

namespace llmtrain {

/// Inverted dropout with counter-based masks: element e of sample s is kept or not whatever rank, thread or batch it is
/// in.
struct Dropout {
  float probability = 0;  ///< of being zeroed; 0 = off
  uint64_t key = 0;       ///< random_key(seed, purpose, step, layer)

  bool active() const { return probability > 0; }
  /// 0 or 1 / (1 - p). For row r and channel c of [N, C]: sequence = sequence_ids[r], element = sequence_offsets[r] * C
  /// + c.
  LLMTRAIN_HOST_DEVICE float scale(uint64_t sequence, uint64_t element) const {
    return random_uniform(random_bits(key, sequence, element)) < probability ? 0.0f : 1.0f / (1.0f - probability);
  }
};

}  // namespace llmtrain
