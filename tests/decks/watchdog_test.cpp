// Ranks that are killed, stopped, stuck or slow in whole runs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "decks/run_folder.hpp"

namespace llmtrain::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const TinyDeck deck{120, "",
                    "[checkpoint]\nevery_steps = 20\n[watchdog]\nlost_after = 3s\nstuck_after = 5s\n"
                    "io_stuck_after = 5s\n"};

class Watchdog : public RunFolder {
 protected:
  Watchdog() : RunFolder(text_of_lines(60), deck.text()) {}
  void expect_nothing_left(const std::string& name) const {
    const Outcome left = shell("for i in $(seq 150); do pgrep -f 'run.name=" + name +
                               "( |$)' | grep -vw $$ || exit 0; sleep 0.1; done; exit 1");
    EXPECT_EQ(left.exit_code, 0) << "processes are left: " << left.output;
  }
  void expect_whole(const std::string& name, int ranks) const {
    const Outcome outcome = start(name, ranks, {});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_EQ(ledger(name), whole());
    EXPECT_FALSE(fs::exists(folder / (name + "/status"))) << "left behind by a run that ended well";
  }
  std::string whole() const {
    if (!fs::exists(folder / "whole")) {
      const Outcome outcome = start("whole", 1, {});
      EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    }
    return ledger("whole");
  }
};

TEST_F(Watchdog, AStoppedRankEndsTheJob) {
  for (const int at : {1, 25}) {  // before the first checkpoint, and after it
    const std::string name = "stopped" + std::to_string(at);
    const Outcome outcome =
        start_and(name, 3, lines_in_ledger(at), "kill -STOP $(pid 1); date +%s >$run/../since", "", slow_steps(50));
    const Outcome seconds = shell("echo $(($(date +%s) - $(cat " + (folder / "since").string() + ")))");
    EXPECT_EQ(outcome.exit_code, 76) << outcome.output;
    EXPECT_LE(std::stoi(seconds.output), 3 + 30) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("llmtrain: rank 1 is lost: no heartbeat for "));
    EXPECT_THAT(outcome.output, HasSubstr("the process is stopped"));
    EXPECT_THAT(outcome.output, HasSubstr(" #")) << "the number of the last collective";
    EXPECT_EQ(outcome.output.find("is lost"), outcome.output.rfind("is lost")) << "said once\n" << outcome.output;
    expect_nothing_left(name);
    expect_whole(name, 2);
  }
}

TEST_F(Watchdog, NobodyNoticesAStoppedRankWithoutIt) {
  const Outcome outcome = start_and("off", 2, lines_in_ledger(1),
                                    "sleep 1; p=$(pgrep -n -f 'run.name=off ' ); kill -STOP $p; sleep "
                                    "15; kill -0 $job && echo still there; kill -CONT $p; kill -USR1 $p",
                                    "watchdog.enabled=false run.max_steps=100000");
  EXPECT_EQ(outcome.exit_code, 75) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("still there"));
}

TEST_F(Watchdog, AKilledRankEndsTheJobWithAReport) {
  const Outcome outcome = start_and("killed", 3, lines_in_ledger(25), "kill -KILL $(pid 2)", "",
                                    slow_steps(50) + "PRTE_MCA_odls_base_sigkill_timeout=10");
  EXPECT_EQ(outcome.exit_code, 137) << "mpirun's, which sees it first\n" << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("llmtrain: rank 2 is gone"));
  expect_nothing_left("killed");
  expect_whole("killed", 2);
}

TEST_F(Watchdog, ARankThatIsSlowButMovesIsLeftAlone) {
  const Outcome outcome = start_and(
      "slow", 2, lines_in_ledger(1),
      "p=$(pid 1); while kill -STOP $p 2>/dev/null; do sleep 0.1; kill -CONT $p 2>/dev/null; sleep 0.02; done");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(ledger("slow"), whole());
}

#ifdef LLMTRAIN_FAULT_INJECTION
std::string one_write() {
  return "LD_PRELOAD=" + programs::fault_library +
         " LLMTRAIN_FAULT_PATH=shard- LLMTRAIN_FAULT_RANK=1 LLMTRAIN_FAULT_CALLS=";
}

TEST_F(Watchdog, AHungWriteEndsTheJob) {
  const Outcome outcome =
      start_and("hung", 2, "true", "true", "",
                one_write() + "write LLMTRAIN_FAULT_AT=2 LLMTRAIN_FAULT_HOW=delay LLMTRAIN_FAULT_MS=120000");
  EXPECT_EQ(outcome.exit_code, 76) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("llmtrain: rank 1 is stuck: no progress for "));
  EXPECT_THAT(outcome.output, HasSubstr("saving"));
  expect_nothing_left("hung");
  expect_whole("hung", 3);
}

TEST_F(Watchdog, ADiskThatIsSlowButMovesIsLeftAlone) {
  const Outcome outcome =
      start_and("slow", 2, "true", "true", "run.max_steps=20",
                one_write() + "write:sync LLMTRAIN_FAULT_AT=1 LLMTRAIN_FAULT_HOW=slow LLMTRAIN_FAULT_MS=700");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
}
#endif

TEST_F(Watchdog, ASignalOrTheFileStopWhileTheDataAreReadStopsAllRanks) {
  std::string text;
  for (int i = 0; text.size() < 40'000'000; ++i) {
    text += "word" + std::to_string(uint64_t{2654435761} * static_cast<uint64_t>(i) % 1'000'003) + " and ";
  }
  write_file(folder / "long.txt", text);
  const std::string more = "data.train=" + (folder / "long.txt").string() +
                           " data.tokenizer=bpe data.vocab_size=20000 run.max_steps=2 evaluation.at_end=false";
  const Outcome outcome =
      start_and("read", 2, "grep -q '^{\"rank\":1,.*\"section\":\"reading data\"' $run/status/rank-00000",
                "kill -USR1 $(pid 1)", more);
  EXPECT_EQ(outcome.exit_code, 75) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("stopped by SIGUSR1 while the data were read"));
  EXPECT_FALSE(fs::exists(folder / "read/ledger.jsonl"));
  fs::create_directories(folder / "file");
  write_file(folder / "file/STOP", "");
  const Outcome file = start_and("file", 2, "true", "true", more);
  EXPECT_EQ(file.exit_code, 75) << file.output;
  EXPECT_THAT(file.output, HasSubstr("stopped by the file STOP while the data were read"));
  EXPECT_FALSE(fs::exists(folder / "file/STOP")) << "the next job would find it";
}

}  // namespace
}  // namespace llmtrain::test
