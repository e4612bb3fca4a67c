#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/job/watchdog.hpp"

namespace llmtrain {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Cause = Verdict::Cause;

constexpr WatchdogLimits limits{120, 900, 1800};

/// All wait in the same collective, and none is at fault.
std::vector<ObservedRank> waiting(int ranks, double seconds) {
  std::vector<ObservedRank> all;
  for (int r = 0; r < ranks; ++r) {
    RankStatus s;
    s.rank = r;
    s.section = "step";
    s.step = 7;
    s.collective = "exchange";
    s.sequence = 50;
    s.in_collective = true;
    s.idle = s.since = seconds;
    all.push_back({s, 1, ProcessState::running});
  }
  return all;
}

TEST(WatchdogVerdict, ALostRankIsNamed) {
  auto ranks = waiting(4, 130);
  EXPECT_FALSE(find_verdict(ranks, 0, limits));
  ranks[2].silent = 119;
  EXPECT_FALSE(find_verdict(ranks, 0, limits));
  ranks[2].silent = 121;
  const auto verdict = find_verdict(ranks, 0, limits);
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->cause, Cause::silent);
  EXPECT_THAT(verdict->ranks, ElementsAre(2));
  EXPECT_FALSE(find_verdict(ranks, 2, limits)) << "nobody is lost to himself";
}

TEST(WatchdogVerdict, AProcessThatIsGoneIsNotWaitedFor) {
  auto ranks = waiting(4, 0);
  ranks[1].process = ranks[3].process = ProcessState::gone;
  const auto verdict = find_verdict(ranks, 0, limits);
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->cause, Cause::gone);
  EXPECT_THAT(verdict->ranks, ElementsAre(1, 3));
  EXPECT_THAT(report(*verdict, ranks), HasSubstr("ranks 1, 3 are gone"));
}

// A job script leaves these hosts out.
TEST(WatchdogVerdict, HostsAtFaultAreNamedOnce) {
  auto ranks = waiting(4, 130);
  for (size_t r = 0; r < 4; ++r) ranks[r].status->process.host = r < 2 ? "n1" : "n2";
  EXPECT_EQ(hosts_at_fault({Cause::silent, {2, 3}, 130}, ranks), "n2\n");
  EXPECT_EQ(hosts_at_fault({Cause::stuck, {0, 3}, 130}, ranks), "n1\nn2\n");
  EXPECT_EQ(hosts_at_fault({Cause::gone, {2}, 0}, ranks), "") << "the process is lost, not its host";
}

TEST(WatchdogVerdict, AStoppedProcessMayGoOn) {
  auto ranks = waiting(2, 100);
  ranks[1].process = ProcessState::stopped;
  ranks[1].silent = 100;
  EXPECT_FALSE(find_verdict(ranks, 0, limits));
}

TEST(WatchdogVerdict, WhoWaitsForARankAtWorkIsPatient) {
  auto ranks = waiting(3, 100'000);
  ranks[2].status->in_collective = false;  // has its own deadline, which it watches itself
  EXPECT_FALSE(find_verdict(ranks, 0, limits));
}

TEST(WatchdogVerdict, NobodyMovesWhenAllWait) {
  auto ranks = waiting(3, 1799);
  EXPECT_FALSE(find_verdict(ranks, 0, limits));
  ranks = waiting(3, 1801);
  ranks[1].status->sequence = 49;
  const auto verdict = find_verdict(ranks, 0, limits);
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->cause, Cause::nobody_moves);
  EXPECT_THAT(verdict->ranks, ElementsAre(1));
  ranks[2].status->since = 1;
  EXPECT_FALSE(find_verdict(ranks, 0, limits)) << "one has just come";
  EXPECT_FALSE(find_verdict(waiting(1, 1e6), 0, limits));
}

TEST(WatchdogVerdict, DeadlinesGrowWithTheWork) {
  EXPECT_EQ(deadline_of(Section::step, false, 0, limits), 900);
  EXPECT_EQ(deadline_of(Section::step, false, 89, limits), 900);
  EXPECT_EQ(deadline_of(Section::step, false, 100, limits), 1000);
  EXPECT_EQ(deadline_of(Section::step, true, 0, limits), 1800);
  EXPECT_EQ(deadline_of(Section::data, false, 0, limits), 1800);
  EXPECT_EQ(deadline_of(Section::saving, false, 500, limits), 5000);
}

TEST(WatchdogVerdict, TheReportHasALineForEachRank) {
  auto ranks = waiting(3, 130);
  for (auto& rank : ranks) rank.status->process = {"n" + std::to_string(rank.status->rank), 100, 1, ""};
  ranks[1].silent = 131;
  ranks[1].status->in_collective = false;
  ranks[1].status->sequence = 49;
  ranks[2].status.reset();
  const std::string text = report(*find_verdict(ranks, 0, limits), ranks);
  EXPECT_THAT(text, HasSubstr("llmtrain: rank 1 is lost: no heartbeat for 131 s. State of the ranks:\n"));
  EXPECT_THAT(text, HasSubstr("  rank 0 on n0, process 100: step 7, waits in exchange #50 (0 bytes) for 130 s; last "
                              "heartbeat 1.0 s ago\n"));
  EXPECT_THAT(text, HasSubstr("  rank 1 on n1, process 100: step 7, computing for 130 s; last collective exchange #49 "
                              "(0 bytes); last heartbeat 131.0 s ago   <==\n"));
  EXPECT_THAT(text, HasSubstr("  rank 2: its state is unknown\n"));
  EXPECT_THAT(text, HasSubstr("exit code 76"));
}

TEST(WatchdogVerdict, AThousandRanksFitOnAScreen) {
  auto ranks = waiting(1000, 130);
  ranks[999].silent = 200;
  const std::string text = report(*find_verdict(ranks, 0, limits), ranks);
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 80);
  EXPECT_THAT(text, HasSubstr("rank 999 on"));
  EXPECT_THAT(text, HasSubstr("and 935 more"));
}

}  // namespace
}  // namespace llmtrain
