#include "parallel/job/rank_status.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

namespace llmtrain {
namespace {

RankStatus example() {
  RankStatus s;
  s.job = 12;
  s.rank = 3;
  s.beat = 40;
  s.process = {"node-7 \"x\"", 4711, 99, "pid:[1]"};
  s.step = 118;
  s.section = "step";
  s.in_file_call = true;
  s.idle = 1.5;
  s.collective = "all-gather";
  s.sequence = 2040;
  s.bytes = 12'000'000;
  s.in_collective = true;
  s.since = 61;
  return s;
}

TEST(RankStatus, IsTheSameBehindAFile) {
  const RankStatus s = example();
  const std::string text = to_text(s);
  EXPECT_EQ(text.size(), status_bytes);
  const auto back = parse_status(text);
  ASSERT_TRUE(back);
  EXPECT_EQ(to_text(*back), text);
  EXPECT_EQ(back->process, s.process);
  EXPECT_EQ(back->sequence, 2040);
  EXPECT_EQ(back->idle, 1.5);
  RankStatus waits = s;
  waits.waits_for_device = true;
  EXPECT_TRUE(parse_status(to_text(waits))->waits_for_device);
}

TEST(RankStatus, TextsThatAreNoneAreRefused) {
  const std::string text = to_text(example());
  for (const std::string& bad : {std::string(), text.substr(0, 100), std::string("[]"), std::string("{}"),
                                 std::string("{\"rank\": \"three\"}"), std::string(500, '['), "x" + text}) {
    EXPECT_FALSE(parse_status(bad)) << bad;
  }
}

TEST(RankStatus, PeopleReadWhereTheRankIs) {
  RankStatus s = example();
  EXPECT_EQ(describe(s), "step 118, waits in all-gather #2040 (12.0 MB) for 61 s");
  s.in_collective = false;
  EXPECT_EQ(describe(s), "step 118, in a call of the file system for 2 s; last collective all-gather #2040 (12.0 MB)");
  s.in_file_call = false;
  s.waits_for_device = true;
  EXPECT_EQ(describe(s), "step 118, waiting for the device for 2 s; last collective all-gather #2040 (12.0 MB)");
  s.section = "evaluation";
  s.waits_for_writer = s.writer_active = true;
  EXPECT_EQ(describe(s),
            "evaluation after step 118, waits for its checkpoint to be written; last collective all-gather #2040 (12.0 "
            "MB); a checkpoint is being written, last progress 0 s ago");
}

TEST(RankStatus, AProcessIsLookedUpOnItsMachineAlone) {
  const ProcessIdentity own = own_identity();
  ASSERT_GT(own.started, 0);
  EXPECT_EQ(look_up(own, own), ProcessState::running);
  ProcessIdentity other = own;
  other.started += 1;
  EXPECT_EQ(look_up(other, own), ProcessState::gone) << "a later process of the same number";
  other.host += "-2";
  EXPECT_EQ(look_up(other, own), ProcessState::unknown);
}

TEST(RankStatus, StoppedAndGoneProcessesAreSeen) {
  const ProcessIdentity own = own_identity();
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  ProcessIdentity process = own;
  process.pid = child;
  process.started = identity_of(child).started;
  const auto becomes = [&](ProcessState state) {
    for (int i = 0; i < 500 && look_up(process, own) != state; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return look_up(process, own) == state;
  };
  EXPECT_TRUE(becomes(ProcessState::running));
  kill(child, SIGSTOP);
  EXPECT_TRUE(becomes(ProcessState::stopped));
  kill(child, SIGKILL);
  EXPECT_TRUE(becomes(ProcessState::gone)) << "before its parent has asked for it";
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(becomes(ProcessState::gone));
}

TEST(Activity, ScopesMarkWhereAThreadIs) {
  const LaneActivity& lane = activity().lane(Lane::main);
  const uint64_t before = lane.ticks.load();
  {
    const SectionScope outer(Section::evaluation);
    {
      const SectionScope inner(Section::data);
      EXPECT_EQ(lane.section.load(), Section::data);
    }
    EXPECT_EQ(lane.section.load(), Section::evaluation);
    const CollectiveScope collective("sum", 8);
    const RankStatus s = status_of(activity());
    EXPECT_TRUE(s.in_collective);
    EXPECT_EQ(s.collective, "sum");
    EXPECT_EQ(s.section, "evaluation");
  }
  EXPECT_FALSE(status_of(activity()).in_collective);
  EXPECT_GT(lane.ticks.load(), before);
}

TEST(Activity, TheWriterDoesNotCountAsTheTrainingThread) {
  const uint64_t before = activity().lane(Lane::main).ticks.load();
  std::thread([] {
    const WriterScope scope;
    report_progress();
    const FileCall call;
    EXPECT_EQ(activity().lane(Lane::writer).file_calls.load(), 1);
  }).join();
  EXPECT_EQ(activity().lane(Lane::main).ticks.load(), before);
  EXPECT_GT(activity().lane(Lane::writer).ticks.load(), 0U);
  EXPECT_FALSE(activity().lane(Lane::writer).active.load());
}

}  // namespace
}  // namespace llmtrain
