#pragma once
// Order in which keys leave a cache that keeps some of them, shared by both devices.

#include <cmath>
#include <cstdint>

#include "core/host_device.hpp"

namespace llmtrain {

/// A key that may leave: it is not among the last ones.
struct KeptKey {
  int64_t position = 0;
  float sum = 0;  ///< of its attention probabilities
};

/// True if key a leaves before key b, at another position; sinks as in KeptKeys.
LLMTRAIN_HOST_DEVICE inline bool leaves_before(int64_t sinks, const KeptKey& a, const KeptKey& b) {
  if (sinks >= 0) {
    const bool a_stays = a.position < sinks, b_stays = b.position < sinks;
    return a_stays != b_stays ? b_stays : a.position < b.position;
  }
  const float x = std::isnan(a.sum) ? -INFINITY : a.sum, y = std::isnan(b.sum) ? -INFINITY : b.sum;
  return x != y ? x < y : a.position > b.position;
}

}  // namespace llmtrain
