// Kills and failures at file operations of a run that saves: whatever happens, the same command goes on, and the ledger
// is that of a run to which nothing happened. LLMTRAIN_FAULT_POINTS (24): how many points are tried; 0 = all.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "decks/program.hpp"

namespace llmtrain::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class Fault : public ::testing::Test {
 protected:
  Fault() {
    std::string text;
    for (int i = 0; i < 40; ++i) text += "Line " + std::to_string(i * i % 71) + " has some words to train on.\n";
    write_file(folder / "text.txt", text);
    write_file(folder / "deck.ini", "[run]\nmax_steps = 6\noutput = " + folder.text() +
                                        "/runs\n[model]\nd_model = 16\nn_layers = 1\nn_heads = 2\ndropout = 0.1\n"
                                        "[data]\ntrain = " +
                                        (folder / "text.txt").string() + "\ncache = " + (folder / "cache").string() +
                                        "\n[batch]\nsequence_length = 16\nglobal = 4\n[evaluation]\nevery_steps = 3\n"
                                        "[precision]\ncompute = fp32\n[log]\nevery_steps = 2\n"
                                        "[checkpoint]\nevery_steps = 2\nkeep = 2\n");
  }
  void SetUp() override {
    ASSERT_EQ(run("whole").exit_code, 0);
    expected_ = ledger("whole");
    ASSERT_EQ(run("counted", "LLMTRAIN_FAULT_COUNT=" + (folder / "count").string() + " " + fault("counted", 0, "kill"))
                  .exit_code,
              0);
    operations_ = std::stol(read_file(folder / "count"));
    ASSERT_GT(operations_, 100);
  }
  std::string ledger(const std::string& name) const {
    const fs::path path = folder / ("runs/" + name + "/ledger.jsonl");
    return fs::exists(path) ? read_file(path) : "";
  }
  std::string fault(const std::string& name, long at, const std::string& how) const {
    return "LD_PRELOAD=" LLMTRAIN_FAULT_LIBRARY " LLMTRAIN_FAULT_PATH=" + (folder / ("runs/" + name)).string() +
           " LLMTRAIN_FAULT_HOW=" + how + " LLMTRAIN_FAULT_AT=" + std::to_string(at);
  }
  Outcome run(const std::string& name, const std::string& environment = "") const {
    return shell("ulimit -c 0; OMP_NUM_THREADS=1 timeout 120 env " + environment + " " LLMTRAIN_PROGRAM " " +
                 (folder / "deck.ini").string() + " run.name=" + name);
  }
  /// Every so manieth operation.
  long stride(long points) const {
    if (const char* given = std::getenv("LLMTRAIN_FAULT_POINTS")) points = std::atol(given);
    return points == 0 ? 1 : std::max(1L, operations_ / points);
  }
  /// The folder of a run to which something happened: its checkpoints are whole, and the same command ends it.
  void expect_recovery(const std::string& name, const std::string& what) {
    const fs::path checkpoints = folder / ("runs/" + name + "/checkpoints");
    if (fs::exists(checkpoints)) {
      for (const auto& entry : fs::directory_iterator(checkpoints)) {
        if (!entry.path().filename().string().starts_with("step-")) continue;
        const Outcome verified = llmtool({"verify", entry.path().string()});
        EXPECT_EQ(verified.exit_code, 0) << what << verified.output;
      }
    }
    const Outcome again = run(name);
    EXPECT_EQ(again.exit_code, 0) << what << again.output;
    EXPECT_EQ(ledger(name), expected_) << what;
    fs::remove_all(folder / ("runs/" + name));
  }

  TemporaryFolder folder;
  std::string expected_;
  long operations_ = 0;
};

TEST_F(Fault, KilledAtAFileOperation) {
  int killed = 0;
  for (long at = 1; at <= operations_; at += stride(20)) {
    const std::string how = at % 2 == 0 ? "kill" : "torn";
    const Outcome outcome = run("hit", fault("hit", at, how));
    killed += outcome.exit_code == 137 ? 1 : 0;
    expect_recovery("hit", how + " at operation " + std::to_string(at) + "\n" + outcome.output);
  }
  EXPECT_GE(killed, 10);
}

TEST_F(Fault, AnErrorOfTheDiskEndsTheRunWithItsCode) {
  int failed = 0;
  for (long at = 5; at <= operations_; at += stride(8)) {
    const std::string how = at % 2 == 0 ? "eio" : "full";
    const Outcome outcome = run("hit", fault("hit", at, how));
    EXPECT_THAT(outcome.exit_code, AnyOf(0, 73, 74)) << how << at << outcome.output;  // 0: links, removal of leftovers
    if (outcome.exit_code != 0) {
      ++failed;
      EXPECT_THAT(outcome.output, HasSubstr((folder / "runs/hit").string())) << how << at;
    }
    expect_recovery("hit", how + " at operation " + std::to_string(at) + "\n" + outcome.output);
  }
  EXPECT_GE(failed, 4);
}

TEST_F(Fault, ShortWritesAreCompleted) {
  for (long at = 3; at <= operations_; at += stride(6)) {
    const Outcome outcome = run("hit", fault("hit", at, "short"));
    EXPECT_EQ(outcome.exit_code, 0) << at << outcome.output;
    expect_recovery("hit", "short write at operation " + std::to_string(at));
  }
}

}  // namespace
}  // namespace llmtrain::test
