// Statuses of a node in one file, and the schedule of its writes.

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "harness/harness.hpp"
#include "parallel/job/rank_status.hpp"
#include "parallel/job/status_board.hpp"
#include "parallel/traffic.hpp"

namespace llmtrain {
namespace {

using test::communicator;

TEST(StatusBeat, LeavesTheFileSystemInPeace) {
  EXPECT_EQ(status_beat(1, 120), 2);
  EXPECT_EQ(status_beat(20, 120), 2);
  for (const int64_t nodes : {30, 64, 100}) {
    EXPECT_NEAR(static_cast<double>(nodes) / status_beat(nodes, 120), 10, 1e-9) << nodes;
  }
  for (const int64_t nodes : {100, 512, 4096}) {
    EXPECT_DOUBLE_EQ(static_cast<double>(nodes) / status_beat(nodes, 120), static_cast<double>(nodes) / 10) << nodes;
  }
  EXPECT_EQ(status_beat(512, 60), 5) << "twelve beats before a rank is lost";
  EXPECT_EQ(status_beat(1, 0.1), 0.05);
}

RankStatus status_of_rank(int rank, int64_t beat) {
  RankStatus status;
  status.rank = rank;
  status.beat = beat;
  status.process.host = "node";
  return status;
}

TEST(StatusBoard, HasTheStatusesOfItsNode) {
  Communicator& c = communicator();
  int64_t job = std::chrono::steady_clock::now().time_since_epoch().count();
  c.broadcast(&job, sizeof job);
  StatusBoard board(job, c);
  EXPECT_EQ(std::ssize(board.first_ranks()), c.node_count());
  EXPECT_EQ(board.first_rank(), c.rank() - c.node_rank());
  for (int64_t beat = 1; beat <= 3; ++beat) {
    board.put(to_text(status_of_rank(c.rank(), beat)));
    c.barrier();
    const std::vector<RankStatus> found = parse_statuses(board.statuses());
    ASSERT_EQ(std::ssize(found), c.node_size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].rank, board.first_rank() + static_cast<int64_t>(i));
      EXPECT_EQ(found[i].beat, beat);
    }
    c.barrier();
  }
}

TEST(StatusBoard, IsWrittenByTheFirstRankThatLives) {
  Communicator& c = communicator();
  int64_t job = std::chrono::steady_clock::now().time_since_epoch().count();
  c.broadcast(&job, sizeof job);
  StatusBoard board(job, c);
  board.put(to_text(status_of_rank(c.rank(), 1)));
  c.barrier();
  EXPECT_EQ(board.writes(60), c.node_rank() == 0);
  c.barrier();
  // The first rank falls silent.
  constexpr double patience = 0.3;
  for (int i = 0; i < 40; ++i) {
    if (c.node_rank() != 0) board.put(to_text(status_of_rank(c.rank(), 2 + i)));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    board.writes(patience);  // a look
  }
  if (c.node_rank() != 0) board.put(to_text(status_of_rank(c.rank(), 42)));
  c.barrier();
  const bool taken_over = c.node_rank() == 1;
  EXPECT_EQ(board.writes(patience), taken_over || c.node_rank() == 0) << "the second one writes";
}

}  // namespace
}  // namespace llmtrain
