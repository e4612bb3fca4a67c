#include "device/choose_device.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "core/error.hpp"

namespace llmtrain {
namespace {

const std::vector<std::string> node = {"0000:1A:00.0", "0000:3B:00.0", "0000:9C:00.0", "0000:DB:00.0"};

TEST(ChooseDevice, EveryRankOfANodeHasItsOwn) {
  std::set<int> chosen;
  for (int rank = 0; rank < 4; ++rank) chosen.insert(choose_device(node, rank, 4));
  EXPECT_EQ(chosen, (std::set<int>{0, 1, 2, 3}));
}

TEST(ChooseDevice, ARankThatSeesOneTakesIt) {
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(choose_device({node.data() + rank % 4, 1}, rank, 8), 0);
}

// Launchers show the nearest GPU first, or CUDA_VISIBLE_DEVICES is a list of its own for each rank.
TEST(ChooseDevice, TheOrderThatARankSeesDoesNotMatter) {
  std::set<std::string> chosen;
  for (int rank = 0; rank < 4; ++rank) {
    std::vector<std::string> seen(node.rbegin(), node.rend());
    std::rotate(seen.begin(), seen.begin() + rank, seen.end());
    chosen.insert(seen[static_cast<size_t>(choose_device(seen, rank, 4))]);
  }
  EXPECT_EQ(chosen.size(), 4u);
}

TEST(ChooseDevice, RanksWithSeveralOfTheirOwnDoNotMeet) {
  EXPECT_NE(node[static_cast<size_t>(choose_device({node.data(), 2}, 0, 2))],
            node[static_cast<size_t>(2 + choose_device({node.data() + 2, 2}, 1, 2))]);
}

TEST(ChooseDevice, MoreRanksThanDevicesTakeThemInTurn) {
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(choose_device({node.data(), 2}, rank, 4), rank % 2);
}

// CUDA shows the fastest first, or the order of the user's list.
TEST(ChooseDevice, ARankAloneTakesTheFirst) {
  const std::vector<std::string> seen = {node[3], node[1]};
  EXPECT_EQ(choose_device(seen, 0, 1), 0);
  EXPECT_EQ(choose_device(seen, 0, 2), 1) << "control";
}

TEST(ChooseDevice, NothingToChooseFromIsAnError) { EXPECT_THROW(choose_device({}, 0, 1), Error); }

}  // namespace
}  // namespace llmtrain
