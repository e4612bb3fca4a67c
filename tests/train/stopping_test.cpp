// Share of a job's time that is reserved for its last save.

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "core/stop_request.hpp"
#include "harness/harness.hpp"
#include "harness/temporary_folder.hpp"
#include "parallel/toy_model.hpp"
#include "train/run/stop_monitor.hpp"
#include "train/saver.hpp"

namespace llmtrain {
namespace {

RunConfig with_time_limit(int64_t seconds) {
  RunConfig run;
  run.time_limit = seconds;
  run.output = "/nowhere";
  return run;
}

TEST(TimeLimit, KeepsTheTimeThatASaveNeeds) {
  StopMonitor stop_monitor(with_time_limit(100'000), {}, true);
  EXPECT_EQ(stop_monitor.requested(0).stop, 0);
  EXPECT_EQ(stop_monitor.requested(40'000).stop, 0);
  StopMonitor other(with_time_limit(1), {}, true);
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  EXPECT_EQ(other.requested(0.4).stop, stop_by_time) << "0.7 s of 1 s are gone";
}

TEST(TimeLimit, LeavesHalfToSteps) {
  StopMonitor stop_monitor(with_time_limit(100'000), {}, true);
  EXPECT_EQ(stop_monitor.requested(1e9).stop, 0) << "or there might be no step in any job";
  StopMonitor other(with_time_limit(1), {}, true);
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  EXPECT_EQ(other.requested(1e9).stop, stop_by_time);
}

TEST(Saver, TakesADiskForSlowBeforeTheFirstSave) {
  const test::TemporaryFolder folder;
  ParamStore store({{"unit", {test::param("weight", 1000, 250)}}}, {});
  RunLog log({});
  Saver saver({}, folder.text(), store, test::stream(), {}, test::communicator(), log, nullptr);
  EXPECT_NEAR(saver.seconds(), 3 * 4 * 250'000 / 100e6, 1e-4) << "parameters and two moments at 100 MB/s";
}

}  // namespace
}  // namespace llmtrain
