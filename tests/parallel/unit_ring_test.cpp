#include "params/unit_ring.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace llmtrain {
namespace {

RingPlan plan(std::vector<int64_t> elements, std::vector<uint8_t> separate = {}) {
  separate.resize(elements.size());
  return plan_ring(elements, separate);
}

TEST(UnitRing, SecondSlotTakesTheLargestUnitOfASmallPair) {
  const RingPlan tied = plan({3800, 700, 710, 705});
  EXPECT_EQ(tied.slots, (std::array<int64_t, 2>{3800, 705}));  // 710 has no neighbour that needs the first slot too
  const RingPlan untied = plan({3800, 700, 700, 3900});
  EXPECT_EQ(untied.slots, (std::array<int64_t, 2>{3900, 700}));
  const RingPlan two_large = plan({3800, 3900, 700});
  EXPECT_EQ(two_large.slots, (std::array<int64_t, 2>{3900, 3800}));
  EXPECT_EQ(plan({500}).slots, (std::array<int64_t, 2>{500, 0}));
}

TEST(UnitRing, SmallAndWantedUnitsStandApart) {
  const RingPlan p = plan({3800, 700, 700, 10}, {1, 0, 0, 0});
  EXPECT_EQ(p.own, (std::vector<uint8_t>{1, 0, 0, 1}));
  EXPECT_EQ(p.slots, (std::array<int64_t, 2>{700, 700}));
}

// Invariant for the parameter store: any two consecutive units of the ring fit at once.
TEST(UnitRing, NeighboursFitTogether) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 500; ++trial) {
    std::vector<int64_t> elements(2 + random() % 8);
    for (int64_t& n : elements) n = 1 + static_cast<int64_t>(random() % 1000);
    const RingPlan p = plan(elements);
    int64_t previous = 0;
    for (size_t u = 0; u < elements.size(); ++u) {
      if (p.own[u] != 0) continue;
      EXPECT_LE(elements[u], p.slots[0]);
      EXPECT_LE(std::min(elements[u], previous), p.slots[1]);
      previous = elements[u];
    }
    EXPECT_LE(p.slots[1], p.slots[0]);
  }
}

}  // namespace
}  // namespace llmtrain
