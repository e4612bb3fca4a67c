// Requests to stop, and kills: what a job leaves is always something to go on from.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "decks/program.hpp"

namespace llmtrain::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr std::string_view prefix = "OMP_NUM_THREADS=1 timeout 300 ";
constexpr size_t limit_of_test = prefix.size();  // of a command, to leave them out

class Interruption : public ::testing::Test {
 protected:
  Interruption() {
    std::string text;
    for (int i = 0; i < 60; ++i) text += "Line " + std::to_string(i * i % 71) + " has some words to train on.\n";
    write_file(folder / "text.txt", text);
    write_file(folder / "deck.ini", "[run]\nmax_steps = 400\noutput = " + folder.text() +
                                        "\n[model]\nd_model = 24\nn_layers = 2\nn_heads = 2\ndropout = 0.1\n[data]\n"
                                        "train = " +
                                        (folder / "text.txt").string() +
                                        "\n[batch]\nsequence_length = 32\nglobal = 6\n[evaluation]\nevery_steps = 7\n"
                                        "[precision]\ncompute = fp32\n[log]\nevery_steps = 3\n"
                                        "[checkpoint]\nevery_steps = 50\n");
  }
  std::string ledger(const std::string& name) const { return read_file(folder / (name + "/ledger.jsonl")); }
  std::string command(const std::string& name, int ranks, const std::string& more = "") const {
    return "OMP_NUM_THREADS=1 timeout 300 " +
           (ranks > 1 ? LLMTRAIN_MPIRUN " " + std::to_string(ranks) + " " : std::string()) + LLMTRAIN_PROGRAM " " +
           (folder / "deck.ini").string() + " run.name=" + name + " " + more;
  }
  /// Runs in the background; once the ledger has `lines` lines, `action` (with the job's id in $job) is done; ends with
  /// the job's exit code.
  Outcome run_and(const std::string& name, int ranks, const std::string& action, int lines = 4,
                  const std::string& more = "") const {
    const std::string file = (folder / (name + "/ledger.jsonl")).string();
    return shell("ulimit -c 0; (export OMP_NUM_THREADS=1; " +
                 command(name, ranks, more).replace(0, limit_of_test, "exec ") +
                 ") & job=$!; for i in $(seq 600); do [ \"$(cat " + file + " 2>/dev/null | wc -l)\" -ge " +
                 std::to_string(lines) + " ] && break; kill -0 $job 2>/dev/null || break; sleep 0.02; done; " + action +
                 "; wait $job; code=$?; exit $code");
  }
  void expect_whole(const std::string& name, int ranks) const {
    const Outcome outcome = shell(command(name, ranks));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_EQ(ledger(name), ledger("whole"));
  }
  void expect_stopped(const std::string& name, const std::string& reason, const Outcome& outcome) const {
    EXPECT_EQ(outcome.exit_code, 75) << reason << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("stopped by " + reason));
    EXPECT_TRUE(fs::exists(folder / (name + "/checkpoints/latest/manifest.json"))) << outcome.output;
    EXPECT_FALSE(fs::exists(folder / (name + "/finished.json")));
  }
  void SetUp() override {
    const Outcome outcome = shell(command("whole", 1));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  }

  TemporaryFolder folder;
};

TEST_F(Interruption, SignalsEndWithACheckpoint) {
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

// Files are looked for twice a second, so these runs are longer.
constexpr const char* longer = "run.max_steps=2000 evaluation.every_steps=500 checkpoint.every_steps=500";

TEST_F(Interruption, TheFileStopEndsWithACheckpoint) {
  const std::string file = (folder / "stopped/STOP").string();
  expect_stopped("stopped", "the file STOP", run_and("stopped", 2, "touch " + file, 4, longer));
  EXPECT_FALSE(fs::exists(file));
  ASSERT_EQ(shell(command("stopped", 1, longer)).exit_code, 0);
  ASSERT_EQ(shell(command("long", 1, longer)).exit_code, 0);
  EXPECT_EQ(ledger("stopped"), ledger("long"));
}

TEST_F(Interruption, OneSignalledRankStopsAll) {
  const Outcome all = run_and("all", 3, "kill -USR1 $job");
  EXPECT_EQ(all.exit_code, 75) << all.output;
  expect_whole("all", 2);
  // The last of the launcher's processes alone.
  const Outcome one = run_and("one", 3, "kill -TERM $(pgrep -P $(pgrep -P $job prted 2>/dev/null || echo $job) -n)");
  EXPECT_EQ(one.exit_code, 75) << one.output;
  EXPECT_THAT(one.output, HasSubstr("stopped by SIGTERM"));
  expect_whole("one", 4);
}

TEST_F(Interruption, KilledAtAnyMomentItGoesOn) {
  const std::string often = "checkpoint.every_steps=10 checkpoint.keep=2";
  ASSERT_EQ(shell(command("often", 1, often)).exit_code, 0);
  int killed = 0;
  for (int round = 0; round < 20; ++round) {
    const std::string limit = std::to_string(round / 8) + "." + std::to_string(300 + round * 7919 % 600);
    const Outcome outcome = shell("timeout -s KILL " + limit + " bash -c \"exec " +
                                  command("killed", 1, often).substr(limit_of_test) + "\"");
    if (outcome.exit_code == 0) break;
    EXPECT_EQ(outcome.exit_code, 137) << outcome.output;
    ++killed;
  }
  EXPECT_GT(killed, 3);
  const Outcome outcome = shell(command("killed", 2, often));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(ledger("killed"), ledger("often"));
  for (const auto& entry : fs::directory_iterator(folder / "killed/checkpoints")) {
    EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << entry.path() << " was left";
  }
}

TEST_F(Interruption, ATimeLimitIsKept) {
  const Outcome outcome = shell(command("limited", 2, "run.time_limit=3s run.max_steps=1000000"));
  EXPECT_EQ(outcome.exit_code, 75) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("stopped by the time limit"));
}

TEST_F(Interruption, TheFileSaveSavesOnce) {
  const std::string file = (folder / "saved/SAVE").string();
  const Outcome outcome = run_and("saved", 1, "touch " + file, 2, longer);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_FALSE(fs::exists(file));
  size_t saves = 0;
  for (size_t at = outcome.output.find("\nsaved "); at != std::string::npos;
       at = outcome.output.find("\nsaved ", at + 1))
    ++saves;
  EXPECT_EQ(saves, 5U) << "four of the deck's and one that was asked for\n" << outcome.output;
  ASSERT_EQ(shell(command("long", 1, longer)).exit_code, 0);
  EXPECT_EQ(ledger("saved"), ledger("long"));
}

/// The deck is a pipe: the signal comes while the program waits for it, as soon as it notes signals at all.
TEST_F(Interruption, ASignalBeforeTheDeckIsReadIsNoted) {
  const std::string pipe = (folder / "pipe.ini").string();
  const auto signalled = [&](const std::string& arguments) {
    write_file(folder / "early.sh",
               "cd " + folder.text() +
                   "; rm -f pipe.ini; mkfifo pipe.ini; export OMP_NUM_THREADS=1\n" LLMTRAIN_PROGRAM
                   " pipe.ini run.name=early " +
                   arguments +
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

TEST_F(Interruption, WithoutSignalSaveASignalIsDeadly) {
  const Outcome outcome = shell("(OMP_NUM_THREADS=1 exec " LLMTRAIN_PROGRAM " " + (folder / "deck.ini").string() +
                                " run.name=deadly run.max_steps=1000000 checkpoint.signal_save=false) & job=$!; sleep "
                                "1; kill -TERM $job; wait $job");
  EXPECT_EQ(outcome.exit_code, 143) << outcome.output;
}

}  // namespace
}  // namespace llmtrain::test
