#pragma once
#include <cmath>
#include <cstdint>

#include "core/philox.hpp"

namespace llmtrain {

/// Element `element` of a stream of standard normal numbers: Box & Muller 1958, in double. Two neighbours share a
/// Philox evaluation, one takes the cosine, the other the sine.
LLMTRAIN_HOST_DEVICE inline double random_normal(uint64_t key, uint64_t element) {
  const Philox4 r = philox4x32(key, 0, element >> 1);
  const uint64_t bits = ((uint64_t{r.v[0]} << 32) | r.v[1]) >> 11;
  const double radius_uniform = (static_cast<double>(bits) + 0.5) * 0x1p-53;  // in (0, 1)
  const double angle = 6.283185307179586 * random_uniform(r.v[2]);
  const double radius = std::sqrt(-2.0 * std::log(radius_uniform));
  return radius * ((element & 1) == 0 ? std::cos(angle) : std::sin(angle));
}

}  // namespace llmtrain
