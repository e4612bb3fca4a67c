#pragma once
// Assignment of units, or parts of units, to two alternating buffers (gathered weights, gradients before their
// reduction), and the sizes of these. Pure arithmetic.

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace llmtrain {

struct RingPlan {
  std::vector<uint8_t> own;        ///< true if the unit has a separate buffer outside the ring
  std::array<int64_t, 2> slots{};  ///< elements: the first slot takes any unit, the second at most the first's size
};

/// elements[u] is the size of unit u; separate[u] != 0 requests a separate buffer. Units far smaller than the largest
/// have one as well, so that a lone norm never occupies the slot that an embedding needs: those below a fraction of
/// `usual`, if the largest is larger. Any two consecutive units of the ring fit at the same time: the second slot has
/// the maximum, over all neighbours, of the smaller one's size.
RingPlan plan_ring(std::span<const int64_t> elements, std::span<const uint8_t> separate,
                   int64_t usual = std::numeric_limits<int64_t>::max());

}  // namespace llmtrain
