#include "data/stream/packing.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>

namespace llmtrain {
namespace {

using Packing = DataConfig::Packing;
using testing::ElementsAre;
using PackList = std::vector<std::vector<int32_t>>;

PackList packs_of(Packing packing, const std::vector<int32_t>& lengths, int32_t capacity) {
  const Packs packs = pack_items(packing, lengths, capacity);
  PackList list;
  for (size_t p = 0; p + 1 < packs.begin.size(); ++p) {
    list.emplace_back(packs.items.begin() + packs.begin[p], packs.items.begin() + packs.begin[p + 1]);
  }
  return list;
}

/// Implements the definition by looking at every pack for every item.
PackList plain_packs(Packing packing, const std::vector<int32_t>& lengths, int32_t capacity) {
  std::vector<int32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  const auto length = [&](int32_t item) { return lengths[static_cast<size_t>(item)]; };
  if (packing == Packing::best_fit) {
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return length(a) > length(b); });
  }
  PackList packs;
  std::vector<int32_t> room;
  for (const int32_t item : order) {
    size_t chosen = packs.size();
    const size_t first = packing == Packing::greedy && !packs.empty() ? packs.size() - 1 : 0;
    for (size_t p = first; p < packs.size(); ++p) {
      if (room[p] < length(item)) continue;
      if (chosen < packs.size() && (packing != Packing::best_fit || room[p] >= room[chosen])) continue;
      chosen = p;
    }
    if (chosen == packs.size()) {
      packs.emplace_back();
      room.push_back(capacity);
    }
    packs[chosen].push_back(item);
    room[chosen] -= length(item);
  }
  for (auto& pack : packs) std::sort(pack.begin(), pack.end());
  std::sort(packs.begin(), packs.end());
  return packs;
}

TEST(Packing, SmallCases) {
  const std::vector<int32_t> lengths = {5, 6, 3, 4, 2, 1};
  EXPECT_THAT(packs_of(Packing::greedy, lengths, 10),
              ElementsAre(ElementsAre(0), ElementsAre(1, 2), ElementsAre(3, 4, 5)));
  EXPECT_THAT(packs_of(Packing::first_fit, lengths, 10),
              ElementsAre(ElementsAre(0, 2, 4), ElementsAre(1, 3), ElementsAre(5)));
  EXPECT_THAT(packs_of(Packing::best_fit, lengths, 10),
              ElementsAre(ElementsAre(0, 2, 4), ElementsAre(1, 3), ElementsAre(5)));
  EXPECT_THAT(packs_of(Packing::best_fit, {2, 2, 8, 8}, 10), ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)))
      << "equal ones in their order, the oldest pack first";
  EXPECT_THAT(packs_of(Packing::best_fit, {1, 9, 7, 1}, 10), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)))
      << "the fullest pack with room, not the oldest";
  EXPECT_TRUE(packs_of(Packing::first_fit, {}, 10).empty());
}

TEST(Packing, IsThatOfTheDefinition) {
  std::mt19937 random(4);
  for (int trial = 0; trial < 300; ++trial) {
    const int32_t capacity = 1 + static_cast<int32_t>(random() % 50);
    std::vector<int32_t> lengths(random() % 200);
    for (int32_t& length : lengths) length = 1 + static_cast<int32_t>(random() % static_cast<uint32_t>(capacity));
    for (const Packing packing : {Packing::greedy, Packing::first_fit, Packing::best_fit}) {
      ASSERT_EQ(packs_of(packing, lengths, capacity), plain_packs(packing, lengths, capacity)) << trial;
    }
  }
  // The controls: the definitions differ, and so do the packs of another order.
  const std::vector<int32_t> lengths = {6, 5, 4, 3, 5, 7, 1};
  EXPECT_NE(plain_packs(Packing::greedy, lengths, 10), plain_packs(Packing::first_fit, lengths, 10));
  EXPECT_NE(plain_packs(Packing::first_fit, lengths, 10), plain_packs(Packing::best_fit, lengths, 10));
}

TEST(Packing, MillionsOfDocumentsTakeSeconds) {
  std::mt19937 random(6);
  std::vector<int32_t> lengths(2'000'000);
  for (int32_t& length : lengths) length = 1 + static_cast<int32_t>(random() % 1000 * (random() % 1000) / 500);
  const int64_t sum = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  for (const Packing packing : {Packing::greedy, Packing::first_fit, Packing::best_fit}) {
    const auto begin = std::chrono::steady_clock::now();
    const Packs packs = pack_items(packing, lengths, 2048);
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    const double fill = static_cast<double>(sum) / 2048 / static_cast<double>(packs.begin.size() - 1);
    std::printf("%s: %.1f s, %.2f %% full\n", std::string(name_of(packing)).c_str(), time.count(), 100 * fill);
    EXPECT_LT(time.count(), 60) << "n log n";
    EXPECT_GT(fill, packing == Packing::greedy ? 0.7 : 0.97);
    EXPECT_LE(fill, 1);
  }
}

}  // namespace
}  // namespace llmtrain
