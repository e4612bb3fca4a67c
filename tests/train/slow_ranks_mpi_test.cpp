// A rank that is slow for long is found by its own work: the time of a step is the same on all ranks. Its node is named
// once, and when it has recovered; and the ledger knows nothing of it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "core/activity.hpp"
#include "core/machine.hpp"
#include "harness/harness.hpp"
#include "harness/temporary_folder.hpp"
#include "tasks/program.hpp"
#include "train/step_hook.hpp"

namespace llmtrain {
namespace {

using test::communicator;
using testing::HasSubstr;
using testing::Not;

constexpr const char* deck_text = R"([run]
max_steps = 120
[model]
d_model = 16
n_layers = 1
n_heads = 2
[data]
tokenizer = char
validation_fraction = 0
[batch]
sequence_length = 16
micro = 1
global = 4
[parallel]
zero = 2
[precision]
compute = fp32
[checkpoint]
every_steps = 0
at_end = false
[log]
every_steps = 5
slow_after = 1s
[watchdog]
enabled = false
)";

int slow_rank = -1;

/// Up to step 60 a pass of the slow rank takes four times as long as one of the others; then all take as long.
void delay(int rank) {
  const bool is_long = rank == slow_rank || activity().step > 60;
  std::this_thread::sleep_for(std::chrono::milliseconds(slow_rank < 0 ? 10 : is_long ? 32 : 8));
}

class SlowRanks : public ::testing::Test {
 protected:
  SlowRanks() {
    std::string shared = communicator().rank() == 0 ? own_.text() : "";
    communicator().broadcast(shared);
    folder = shared;
    if (communicator().rank() == 0) {
      std::ofstream text(folder / "text.txt");
      for (int i = 0; i < 200; ++i) text << "Line " << i * 7919 % 1000 << " has some words.\n";
      std::ofstream(folder / "deck.ini") << deck_text;
    }
    communicator().barrier();
    pass_hook = delay;
  }
  void TearDown() override {
    pass_hook = nullptr;
    communicator().barrier();
  }
  /// Returns what rank 0 printed.
  std::string run(const std::string& name, int slow, const std::vector<std::string>& overrides = {}) const {
    slow_rank = slow;
    CommandLine command;
    command.deck = (folder / "deck.ini").string();
    command.overrides = {"run.name=" + name, "run.output=" + folder.string(),
                         "data.train=" + (folder / "text.txt").string(), "data.cache=" + (folder / "cache").string()};
    command.overrides.insert(command.overrides.end(), overrides.begin(), overrides.end());
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    EXPECT_EQ(run_program(command, test::runtime()), 0);
    const std::string text = testing::internal::GetCapturedStdout() + testing::internal::GetCapturedStderr();
    communicator().barrier();
    return text;
  }
  std::string read(const std::string& name, const std::string& file) const {
    std::ostringstream text;
    text << std::ifstream(folder / name / file, std::ios::binary).rdbuf();
    return text.str();
  }
  std::filesystem::path folder;

 private:
  test::TemporaryFolder own_;  // rank 0's folder serves all ranks
};

TEST_F(SlowRanks, AreNamedAndChangeNoNumber) {
  const int ranks = communicator().size();
  const std::string host = host_name();
  run("even", -1, {"log.system=false"});
  const std::string quiet = read("even", "metrics.jsonl");
  EXPECT_THAT(quiet, Not(HasSubstr("slow_node"))) << "control: nobody is slow";
  EXPECT_THAT(quiet, Not(HasSubstr("system/")));
  EXPECT_THAT(quiet, HasSubstr("\"samples_per_second\":"));
  if (ranks != 3) return;  // one such run is enough
  const std::string console = run("uneven", 2);
  EXPECT_EQ(read("uneven", "ledger.jsonl"), read("even", "ledger.jsonl"));
  if (communicator().rank() != 0) return;
  const std::string metrics = read("uneven", "metrics.jsonl");
  EXPECT_THAT(console, HasSubstr(host + " is slow: rank 2 needs "));
  EXPECT_THAT(console, HasSubstr(host + " has recovered: "));
  const std::string notice = "\"slow_node\":\"" + host + "\",\"slow_ranks\":[2],";
  EXPECT_THAT(metrics, HasSubstr(notice));
  EXPECT_EQ(metrics.find(notice), metrics.rfind(notice)) << "once";
  EXPECT_THAT(metrics, HasSubstr("\"recovered_node\":\"" + host + "\""));
  EXPECT_THAT(metrics, HasSubstr("\"ranks/slowest/rank\":2.0"));
  EXPECT_THAT(metrics, HasSubstr("\"ranks/step_seconds/max\":"));
  EXPECT_THAT(metrics, HasSubstr("\"system/" + host + "/job_cpu_percent\":"));
}

}  // namespace
}  // namespace llmtrain
