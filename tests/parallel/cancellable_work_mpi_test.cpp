#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "core/error.hpp"
#include "core/stop_request.hpp"
#include "harness/harness.hpp"
#include "parallel/job/cancellable_work.hpp"

namespace llmtrain {
namespace {

using test::communicator;
using ::testing::HasSubstr;

/// Work without an end: only a meeting can end it.
void work_for_ever(const Pause& pause) {
  while (true) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    pause();
  }
}

bool is_last() { return communicator().rank() + 1 == communicator().size(); }

TEST(Together, RanksThatAreDoneWaitForTheOthers) {
  int64_t meetings[] = {0}, pieces = 0;
  run_cancellable(
      communicator(), "while testing",
      [&](const Pause& pause) {
        for (; pieces < (is_last() ? 12 : 1); ++pieces) {
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
          pause();
        }
      },
      [&] { ++meetings[0]; });
  EXPECT_EQ(pieces, is_last() ? 12 : 1);
  EXPECT_GE(meetings[0], 2) << "one on the way, one at the end";
  int64_t most[] = {meetings[0]};
  communicator().maximum(most);
  EXPECT_EQ(most[0], meetings[0]) << "all ranks have the same";
}

TEST(Together, AFailureOnOneRankEndsTheWorkOfAll) {
  const auto work = [&](const Pause& pause) {
    if (is_last()) throw UserError(ExitCode::bad_content, "x.h5: damaged");
    work_for_ever(pause);
  };
  try {
    run_cancellable(communicator(), "while testing", work);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_content);
    EXPECT_STREQ(error.what(), "x.h5: damaged");
  }
}

TEST(Together, AWishToStopEndsTheWorkOfAllEvenIfItCatchesErrors) {
  const auto work = [&](const Pause& pause) {
    if (is_last()) request_stop(SIGUSR1);
    try {
      work_for_ever(pause);
    } catch (const UserError&) {
      ADD_FAILURE() << "it must not take this for its own";
    }
  };
  try {
    run_cancellable(communicator(), "while testing", work);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::stopped);
    EXPECT_THAT(error.what(), HasSubstr("stopped by SIGUSR1 while testing"));
  }
  EXPECT_THROW(throw_if_stopping(communicator(), "while testing"), UserError);
  // What is done is not given up.
  run_cancellable(communicator(), "while testing", [](const Pause& /*pause*/) {});
  communicator().barrier();
  request_stop(0);
  communicator().barrier();
  throw_if_stopping(communicator(), "while testing");
}

}  // namespace
}  // namespace llmtrain
