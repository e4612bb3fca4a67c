// Requests to stop, and kills: what a job leaves is always something to go on from.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "decks/run_folder.hpp"

namespace llmtrain::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const TinyDeck deck{400, "dropout = 0.1\n",
                    "[evaluation]\nevery_steps = 7\n[log]\nevery_steps = 3\n[checkpoint]\nevery_steps = 50\n"};

class StopMonitor : public RunFolder {
 protected:
  StopMonitor() : RunFolder(text_of_lines(60), deck.text()) {}
  /// Steps take their time; behind some of them `action` is done.
  Outcome run_and(const std::string& name, int ranks, const std::string& action) const {
    return start_and(name, ranks, lines_in_ledger(4), action, "", slow_steps(50));
  }
  void expect_whole(const std::string& name, int ranks) const {
    const Outcome outcome = start(name, ranks, {});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_EQ(ledger(name), whole());
  }
  std::string whole() const {
    if (!fs::exists(folder / "whole")) {
      const Outcome outcome = start("whole", 1, {});
      EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    }
    return ledger("whole");
  }
  void expect_stopped(const std::string& name, const std::string& reason, const Outcome& outcome) const {
    EXPECT_EQ(outcome.exit_code, 75) << reason << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("stopped by " + reason));
    EXPECT_TRUE(fs::exists(folder / (name + "/checkpoints/latest/manifest.json"))) << outcome.output;
    EXPECT_FALSE(fs::exists(folder / (name + "/finished.json")));
  }
};

TEST_F(StopMonitor, SignalsEndWithACheckpoint) {
  const std::pair<const char*, const char*> ways[] = {
      {"SIGUSR1", "kill -USR1 $job"},
      {"SIGTERM", "kill -TERM $job"},
      {"SIGINT", "kill -INT $job"},
      {"SIGUSR2", "kill -USR2 $job; kill -USR2 $job; sleep 0.02; kill -USR2 $job"}};
  int runs = 0;
  for (const auto& [reason, action] : ways) {
    const std::string name = "stopped" + std::to_string(++runs);
    expect_stopped(name, reason, run_and(name, 1, action));
    expect_whole(name, runs % 3 + 1);
  }
}

TEST_F(StopMonitor, TheFileStopEndsWithACheckpoint) {
  expect_stopped("stopped", "the file STOP", run_and("stopped", 2, "touch $run/STOP"));
  EXPECT_FALSE(fs::exists(folder / "stopped/STOP"));
  expect_whole("stopped", 1);
}

TEST_F(StopMonitor, OneSignalledRankStopsAll) {
  const Outcome all = run_and("all", 3, "kill -USR1 $job");
  EXPECT_EQ(all.exit_code, 75) << all.output;
  expect_whole("all", 2);
  // The last of the launcher's processes alone.
  const Outcome one = run_and("one", 3, "kill -TERM $(pgrep -P $(pgrep -P $job prted 2>/dev/null || echo $job) -n)");
  EXPECT_EQ(one.exit_code, 75) << one.output;
  EXPECT_THAT(one.output, HasSubstr("stopped by SIGTERM"));
  expect_whole("one", 4);
}

TEST_F(StopMonitor, KilledAtAnyMomentItGoesOn) {
  const std::vector<std::string> often = {"checkpoint.every_steps=10", "checkpoint.keep=2"};
  ASSERT_EQ(start("often", 1, often).exit_code, 0);
  int killed = 0;
  for (int round = 0; round < 20; ++round) {
    const std::string limit = std::to_string(round / 8) + "." + std::to_string(300 + round * 7919 % 600);
    const Outcome outcome = shell("timeout -s KILL " + limit + " env OMP_NUM_THREADS=1 " + slow_steps(10) +
                                  command("killed", 1, often[0] + " " + often[1]));
    if (outcome.exit_code == 0) break;
    EXPECT_EQ(outcome.exit_code, 137) << outcome.output;
    ++killed;
  }
  EXPECT_GT(killed, 3);
  const Outcome outcome = start("killed", 2, often);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(ledger("killed"), ledger("often"));
  for (const auto& entry : fs::directory_iterator(folder / "killed/checkpoints")) {
    EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << entry.path() << " was left";
  }
}

TEST_F(StopMonitor, ATimeLimitIsKept) {
  const Outcome outcome = start("limited", 2, {"run.time_limit=3s", "run.max_steps=1000000"});
  EXPECT_EQ(outcome.exit_code, 75) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("stopped by the time limit"));
}

TEST_F(StopMonitor, TheFileSaveSavesOnce) {
  fs::create_directories(folder / "saved");
  write_file(folder / "saved/SAVE", "");
  const Outcome outcome = start("saved", 1, {});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_FALSE(fs::exists(folder / "saved/SAVE"));
  size_t saves = 0;
  for (size_t at = outcome.output.find("\nsaved "); at != std::string::npos;
       at = outcome.output.find("\nsaved ", at + 1))
    ++saves;
  EXPECT_EQ(saves, 9U) << "eight of the deck's and one that was asked for\n" << outcome.output;
  EXPECT_EQ(ledger("saved"), whole());
}

/// The deck is a pipe: the signal comes while the program waits for it, as soon as it notes signals at all.
TEST_F(StopMonitor, ASignalBeforeTheDeckIsReadIsNoted) {
  const std::string pipe = (folder / "pipe.ini").string();
  const auto signalled = [&](const std::string& arguments) {
    write_file(folder / "early.sh",
               "cd " + folder.text() + "; rm -f pipe.ini; mkfifo pipe.ini; export OMP_NUM_THREADS=1\n" +
                   programs::llmtrain + " pipe.ini run.name=early " + arguments +
                   " & job=$!\n"
                   "until [ $((0x$(sed -n 's/SigCgt:.//p' /proc/$job/status) & 0x4a02)) = $((0x4a02)) ]; do :; done\n"
                   "kill -TERM $job; cat deck.ini >pipe.ini; wait $job\n");
    return shell("timeout 60 bash " + (folder / "early.sh").string());
  };
  const Outcome stopped = signalled("");
  EXPECT_EQ(stopped.exit_code, 75) << stopped.output;
  EXPECT_THAT(stopped.output, HasSubstr("stopped by SIGTERM before it began"));
  EXPECT_FALSE(fs::exists(folder / "early"));
  EXPECT_EQ(signalled("checkpoint.signal_save=false").exit_code, 143);
  EXPECT_EQ(signalled("--check").exit_code, 143) << "leaves nothing to go on from";
}

/// As for one that comes while the system loads the program, where whoever starts it has blocked the signal.
TEST_F(StopMonitor, ASignalBeforeTheProgramIsNotedWhereItWasBlocked) {
  const auto signalled = [&](const std::string& starter) {
    return shell("OMP_NUM_THREADS=1; export OMP_NUM_THREADS; " + starter + " bash -c 'kill -TERM $$; exec " +
                 command("blocked", 1) + "'");
  };
  const Outcome stopped = signalled("env --block-signal=TERM");
  EXPECT_EQ(stopped.exit_code, 75) << stopped.output;
  EXPECT_THAT(stopped.output, HasSubstr("stopped by SIGTERM before it began"));
  EXPECT_EQ(signalled("env").exit_code, 143) << "a control";
}

TEST_F(StopMonitor, AStopBehindTheLastStepLeavesTheExport) {
  const std::vector<std::string> exporting = {"run.max_steps=8", "checkpoint.export=last", "evaluation.every_steps=0",
                                              "evaluation.at_end=false"};
  const Outcome stopped = start("cut", 2, exporting, "signal step 7 1 10");
  EXPECT_EQ(stopped.exit_code, 75) << stopped.output;
  EXPECT_THAT(stopped.output, HasSubstr("stopped by SIGUSR1 while the weights were exported"));
  EXPECT_EQ(linked("cut", "latest"), "step-00000008");
  EXPECT_FALSE(fs::exists(folder / "cut/finished.json"));
  for (const auto& entry : fs::directory_iterator(folder / "cut")) {
    EXPECT_FALSE(entry.path().filename().string().starts_with("export")) << entry.path();
  }
  EXPECT_EQ(start("cut", 1, exporting).exit_code, 0);
  EXPECT_EQ(start("whole", 1, exporting).exit_code, 0);
  EXPECT_EQ(ledger("cut"), ledger("whole"));
  EXPECT_EQ(read_file(folder / "cut/export/model.safetensors"), read_file(folder / "whole/export/model.safetensors"));
}

#ifdef LLMTRAIN_FAULT_INJECTION
// Reading takes its time here: every file more than the ranks let pass between two looks for STOP.
TEST_F(StopMonitor, AStopWhileTheStateIsReadIsHeeded) {
  const auto slow_reads = [](const std::string& path) {
    return "LD_PRELOAD=" + programs::fault_library +
           " LLMTRAIN_FAULT_CALLS=open LLMTRAIN_FAULT_HOW=slow "
           "LLMTRAIN_FAULT_AT=1 LLMTRAIN_FAULT_MS=700 LLMTRAIN_FAULT_PATH=" +
           path;
  };
  const auto stop = [&](const std::string& name, int ranks, const std::string& slow, const std::string& overrides) {
    fs::create_directories(folder / name);
    write_file(folder / (name + "/STOP"), "");
    const Outcome outcome = start_and(name, ranks, "true", "true", overrides, slow);
    EXPECT_EQ(outcome.exit_code, 75) << outcome.output;
    EXPECT_FALSE(fs::exists(folder / (name + "/STOP"))) << "the next job would find it";
    return outcome.output;
  };
  const std::vector<std::string> short_run = {"run.max_steps=8", "checkpoint.every_steps=4", "checkpoint.export=last"};
  ASSERT_EQ(start("whole", 2, short_run).exit_code, 0);
  cut_off("whole", "cut", 4);
  const std::string before = ledger("cut");
  EXPECT_THAT(stop("cut", 2, slow_reads("shard-"), "run.max_steps=8 checkpoint.every_steps=4 checkpoint.export=last"),
              HasSubstr("stopped by the file STOP while a checkpoint was "));
  EXPECT_EQ(ledger("cut"), before) << "nothing was touched";
  EXPECT_EQ(start("cut", 3, short_run).exit_code, 0);
  EXPECT_EQ(ledger("cut"), ledger("whole"));

  write_file(folder / "deck.ini", "[run]\nmax_steps = 2\noutput = " + folder.text() +
                                      "\n[model]\npath = " + (folder / "whole/export").string() + "\n[data]\ntrain = " +
                                      (folder / "text.txt").string() + "\n[batch]\nsequence_length = 32\nglobal = 6\n");
  EXPECT_THAT(stop("tuned", 1, slow_reads("model.safetensors"), ""),
              ::testing::ContainsRegex("stopped by the file STOP while the (weights|data) were read"));
}
#endif

TEST_F(StopMonitor, WithoutSignalSaveASignalIsDeadly) {
  const Outcome outcome = shell("(OMP_NUM_THREADS=1 exec " + programs::llmtrain + " " + (folder / "deck.ini").string() +
                                " run.name=deadly run.max_steps=1000000 checkpoint.signal_save=false) & job=$!; sleep "
                                "1; kill -TERM $job; wait $job");
  EXPECT_EQ(outcome.exit_code, 143) << outcome.output;
}

}  // namespace
}  // namespace llmtrain::test
