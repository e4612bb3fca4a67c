// The node of a slow rank is named by the rank's own work, since the time of a step is that of all ranks.

#include "system/slow_nodes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "metrics/ledger.hpp"

namespace llmtrain {
namespace {

/// An interval of ten steps of a second, in which the ranks' own work takes these seconds for 100 tokens each.
std::vector<RankTimes> interval(const std::vector<double>& own) {
  std::vector<RankTimes> ranks;
  for (const double seconds : own) {
    RankTimes& rank = ranks.emplace_back();
    rank.steps = 10;
    rank.seconds = 10;
    rank.own_seconds = seconds;
    rank.own_tokens = 100;
  }
  return ranks;
}

/// Texts "a slow 2" of the notices in some equal intervals.
std::vector<std::string> notices(SlowNodes& nodes, const std::vector<RankTimes>& ranks, int intervals) {
  std::vector<std::string> texts;
  for (int i = 0; i < intervals; ++i) {
    for (const NodeNotice& notice : nodes.update(ranks, i)) {
      texts.push_back(notice.host + (notice.slow ? " slow" : " recovered"));
      for (const int rank : notice.ranks) texts.back() += fmt::format(" {}", rank);
    }
  }
  return texts;
}

using testing::ElementsAre;
using testing::IsEmpty;

TEST(SlowNodes, AreNamedOnceAndWhenTheyHaveRecovered) {
  SlowNodes nodes({"a", "a", "b", "b"}, {});
  const auto good = interval({5, 5, 5, 5}), bad = interval({5, 5, 5, 9});
  EXPECT_THAT(notices(nodes, good, 20), IsEmpty());
  EXPECT_THAT(notices(nodes, bad, 5), IsEmpty()) << "50 s: not for long";
  EXPECT_THAT(notices(nodes, bad, 1), ElementsAre("b slow 3"));
  EXPECT_THAT(notices(nodes, bad, 20), IsEmpty());
  EXPECT_THAT(notices(nodes, interval({5, 5, 8, 9}), 20), IsEmpty()) << "the node is named already";
  EXPECT_THAT(notices(nodes, good, 5), IsEmpty());
  EXPECT_THAT(notices(nodes, good, 1), ElementsAre("b recovered"));
  EXPECT_THAT(notices(nodes, interval({9, 9, 5, 5}), 6), ElementsAre("a slow 0 1"));
}

TEST(SlowNodes, OneSlowIntervalAmongOthersNamesNobody) {
  SlowNodes nodes({"a", "b", "c"}, {});
  for (int i = 0; i < 50; ++i) {
    EXPECT_THAT(notices(nodes, interval({5, 9, 5}), 4), IsEmpty());
    EXPECT_THAT(notices(nodes, interval({5, 5, 5}), 1), IsEmpty());
  }
}

TEST(SlowNodes, AreComparedByTheirWork) {
  SlowNodes nodes({"a", "b", "c"}, {});
  auto uneven = interval({5, 10, 5});
  uneven[1].own_tokens = 200;
  EXPECT_THAT(notices(nodes, uneven, 20), IsEmpty()) << "twice the time for twice the tokens";
  auto idle = interval({5, 0, 5});
  idle[1].own_tokens = 0;
  EXPECT_THAT(notices(nodes, idle, 20), IsEmpty()) << "a rank without micro-batches is not compared";
  EXPECT_THAT(notices(nodes, interval({0.01, 0.05, 0.01}), 20), IsEmpty()) << "the steps do not notice it";
  EXPECT_THAT(notices(nodes, interval({5, 10, 5}), 20), ElementsAre("b slow 1")) << "control";
}

TEST(SlowNodes, OfTwoRanksTheSlowerIsNamed) {
  SlowNodes nodes({"a", "b"}, {});
  EXPECT_THAT(notices(nodes, interval({8, 5}), 6), ElementsAre("a slow 0"));
}

TEST(SlowNodes, CanBeLeftUnnamed) {
  SlowNodes nodes({"a", "b"}, {.seconds = 0});
  EXPECT_THAT(notices(nodes, interval({8, 5}), 60), IsEmpty());
}

TEST(SlowNodes, TextsNameTheNodeAndItsRanks) {
  EXPECT_EQ(notice_text({40, "node7", true, {2}, 1.834}),
            "node7 is slow: rank 2 needs 1.83 x the time of the median rank for the same work, and all ranks wait. "
            "Compare the node's clocks, temperature and load with those of others (metrics system/node7/...)");
  EXPECT_THAT(notice_text({40, "node7", true, {2, 3}, 1.8}), testing::HasSubstr("ranks 2, 3 need 1.80 x"));
  EXPECT_EQ(notice_text({90, "node7", false, {}, 1.02}),
            "node7 has recovered: its ranks need 1.02 x the time of the median rank for their own work");
}

TEST(RankValues, AreMinimumMedianAndMaximum) {
  std::map<std::string, double> values;
  auto ranks = interval({5, 9, 6, 7});
  ranks[2].seconds = 11;
  for (const NamedValue& value : rank_values(ranks)) values[value.name] = value.value;
  EXPECT_EQ(values.at("ranks/own_seconds/min"), 0.5);
  EXPECT_DOUBLE_EQ(values.at("ranks/own_seconds/median"), 0.65);
  EXPECT_EQ(values.at("ranks/own_seconds/max"), 0.9);
  EXPECT_EQ(values.at("ranks/step_seconds/median"), 1);
  EXPECT_DOUBLE_EQ(values.at("ranks/step_seconds/max"), 1.1);
  EXPECT_EQ(values.size(), 18u);
}

}  // namespace
}  // namespace llmtrain
