#pragma once
// Which units share two buffers in turn (gathered weights, gradients before their reduction) and how large these must
// be. Pure arithmetic.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace llmtrain {

struct RingPlan {
  std::vector<uint8_t> own;        ///< the unit has a buffer of its own, outside the ring
  std::array<int64_t, 2> slots{};  ///< elements: the first slot takes any unit, the second at most the first's size
};

/// elements[u] is the size of unit u; apart[u] != 0 asks for an own buffer. Units far smaller than the largest have one
/// as well, so that a lone norm never holds the slot that an embedding needs. Of two consecutive units of the ring both
/// fit at once: the second slot is as large as the larger of the smaller ones of all neighbours.
RingPlan plan_ring(std::span<const int64_t> elements, std::span<const uint8_t> apart);

}  // namespace llmtrain
