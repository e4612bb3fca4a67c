#include "params/unit_ring.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace llmtrain {

namespace {
constexpr int64_t small_fraction = 32;  // separate buffers of units below 1/32 of the largest cost almost nothing
}

RingPlan plan_ring(std::span<const int64_t> elements, std::span<const uint8_t> separate, int64_t usual) {
  LLMTRAIN_CHECK(elements.size() == separate.size(), "one flag per unit");
  RingPlan plan;
  plan.own.resize(elements.size());
  const int64_t largest = elements.empty() ? 0 : *std::max_element(elements.begin(), elements.end());
  const int64_t small = std::min(largest, usual) / small_fraction;
  int64_t previous = 0;  // the preceding unit in the ring
  for (size_t u = 0; u < elements.size(); ++u) {
    plan.own[u] = separate[u] != 0 || elements[u] <= small;
    if (plan.own[u] != 0) continue;
    plan.slots[0] = std::max(plan.slots[0], elements[u]);
    plan.slots[1] = std::max(plan.slots[1], std::min(elements[u], previous));
    previous = elements[u];
  }
  return plan;
}

}  // namespace llmtrain
