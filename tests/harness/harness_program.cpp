// Tests of the harness that fail on one rank only; run by CTest with filters.
#include <gtest/gtest.h>

#include "harness/harness.hpp"
#include "parallel/communicator.hpp"

namespace llmtrain {
namespace {

TEST(Harness, Passes) { test::communicator().barrier(); }

TEST(Harness, FailsOnRank1) {
  EXPECT_NE(test::communicator().rank(), 1);
  test::communicator().barrier();
}

TEST(Harness, LeavesOnRank1) {
  ASSERT_NE(test::communicator().rank(), 1);
  test::communicator().barrier();  // would wait for ever
}

}  // namespace
}  // namespace llmtrain
