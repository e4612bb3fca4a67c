#include "train/divergence.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace llmtrain {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

TEST(DivergenceGuard, CountsBadStepsInARow) {
  DivergenceGuard guard({.max_bad_steps = 2});
  EXPECT_EQ(guard.check(0, 1, 1), "");
  EXPECT_EQ(guard.check(1, nan, 1), "the loss is not finite");
  EXPECT_FALSE(guard.must_roll_back());
  EXPECT_FALSE(guard.sound());
  EXPECT_EQ(guard.check(2, 1, 1), "");
  EXPECT_TRUE(guard.sound());
  EXPECT_EQ(guard.check(3, 1, HUGE_VAL), "the gradient norm is not finite");
  EXPECT_EQ(guard.check(4, -HUGE_VAL, 1), "the loss is not finite");
  EXPECT_TRUE(guard.must_roll_back());
  EXPECT_EQ(guard.bad_in_row(), 2);
  EXPECT_EQ(guard.updates(5), 2) << "steps 0 and 2";
}

TEST(DivergenceGuard, AStepWithoutALossSaysNothingOfLosses) {
  DivergenceGuard guard({.max_bad_steps = 2, .spike_z_score = 3, .spike_window = 8});
  for (int64_t n = 0; n < 8; ++n) EXPECT_EQ(guard.check(n, 1 + 0.01 * static_cast<double>(n), 1), "");
  for (int64_t n = 8; n < 16; ++n) EXPECT_EQ(guard.check(n, std::nullopt, 0), "");
  EXPECT_NE(guard.check(16, 2, 1).find("above the mean of 8 steps"), std::string::npos) << "the window is as it was";
  EXPECT_EQ(guard.check(17, std::nullopt, 0), "");
  EXPECT_EQ(guard.bad_in_row(), 1) << "it does not mend the row";
  EXPECT_EQ(guard.check(18, std::nullopt, nan), "the gradient norm is not finite");
  EXPECT_TRUE(guard.must_roll_back());
}

TEST(DivergenceGuard, LeavesOutDataAndCountsThemOn) {
  DivergenceGuard guard({.max_bad_steps = 1, .skip_steps = 3});
  guard.saved(10, true);
  guard.check(15, nan, 1);
  DivergenceGuard back({.max_bad_steps = 1, .skip_steps = 3});
  RunState state;
  DivergenceGuard at_ten({.max_bad_steps = 1, .skip_steps = 3});
  at_ten.saved(10, true);
  at_ten.save(state);
  back.restore(state, true);
  const auto first = back.roll_back(guard, 10);
  EXPECT_EQ(first.first, 10);
  EXPECT_EQ(first.last, 16) << "over the bad step";
  EXPECT_EQ(back.data_step(9), 9);
  EXPECT_EQ(back.data_step(10), 16);
  EXPECT_EQ(back.data_step(11), 17);
  EXPECT_EQ(back.rollbacks(), 1);
  EXPECT_EQ(back.updates(10), 10) << "the history of the state has no bad step";
  // Again to the same step, then to a later one.
  DivergenceGuard again = back;
  again.check(10, nan, 1);
  const DivergenceGuard before = again;
  const auto second = again.roll_back(before, 10);
  EXPECT_EQ(second.first, 16);
  EXPECT_EQ(second.last, 19) << "at least so many";
  EXPECT_EQ(again.data_step(10), 19);
  EXPECT_EQ(again.rollbacks(), 2);
  again.check(19, 1, 1);
  again.saved(20, true);
  EXPECT_EQ(again.rollbacks(), 0) << "it got on";
  // All of it is part of the state.
  RunState saved;
  again.save(saved);
  DivergenceGuard copy({.max_bad_steps = 1, .skip_steps = 3});
  copy.restore(saved, true);
  for (int64_t n = 0; n < 40; ++n) EXPECT_EQ(copy.data_step(n), again.data_step(n));
  EXPECT_EQ(copy.target(), 20);
  copy.restore(saved, false);
  EXPECT_EQ(copy.target(), -1) << "the checkpoints of another run";
  EXPECT_EQ(copy.data_step(10), 19) << "but its data";
}

TEST(DivergenceGuard, ChoosesTheLastScheduledCheckpoint) {
  DivergenceGuard guard({.max_bad_steps = 3});
  EXPECT_EQ(guard.target(), -1);
  guard.saved(3, false);
  EXPECT_EQ(guard.target(), 3) << "better than none";
  guard.saved(4, true);
  guard.saved(6, false);
  EXPECT_EQ(guard.target(), 4);
  guard.check(7, nan, 1);
  guard.saved(8, true);
  EXPECT_EQ(guard.target(), 4) << "not among bad steps";
}

TEST(DivergenceGuard, SpikesStandOut) {
  const DivergenceConfig on{.spike_z_score = 4, .spike_window = 8};
  DivergenceGuard guard(on), off({.spike_window = 8});
  const auto loss = [](int64_t n) { return 3 + 0.1 * static_cast<double>(n % 3); };
  EXPECT_EQ(guard.check(0, 100, 1), "") << "nothing to compare with";
  for (int64_t n = 1; n < 20; ++n) EXPECT_EQ(guard.check(n, loss(n), 1), "") << n;
  EXPECT_NE(guard.check(20, 4, 1), "");
  EXPECT_EQ(guard.check(21, loss(21), 1), "");
  EXPECT_EQ(guard.check(22, 0.1, 1), "") << "below is not a spike";
  EXPECT_NE(guard.check(23, 100, 1), "");
  for (int64_t n = 0; n < 20; ++n) EXPECT_EQ(off.check(n, n == 15 ? 1e9 : loss(n), 1), "") << "off by default";
  RunState state;
  guard.save(state);
  DivergenceGuard copy(on);
  copy.restore(state, true);
  for (double x = 2; x < 12; x += 0.01) {
    DivergenceGuard a = guard, b = copy;
    ASSERT_EQ(a.check(24, x, 1), b.check(24, x, 1)) << x;
  }
}

}  // namespace
}  // namespace llmtrain
