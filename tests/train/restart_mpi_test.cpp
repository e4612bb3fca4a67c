// Stopped after every one of 40 steps, and resumed: the ledger has the bytes of an uninterrupted run. The programs run
// in this process one after the other, so that 160 of them take no time.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "checkpoint/manifest.hpp"
#include "core/error.hpp"
#include "core/stop_request.hpp"
#include "harness/harness.hpp"
#include "harness/temporary_folder.hpp"
#include "parallel/job/runtime.hpp"
#include "tasks/program.hpp"
#include "train/step_hook.hpp"

namespace llmtrain {
namespace {

namespace fs = std::filesystem;
using test::communicator;
using test::runtime;

/// Two or more micro-batches per rank; epochs of four steps, the last of them short; evaluations, one at the end of an
/// epoch; dropout; the warm-up ends after step 5.
constexpr const char* deck_text = R"([run]
max_steps = 40
output = FOLDER
[model]
d_model = 16
n_layers = 1
n_heads = 2
dropout = 0.1
[data]
train = FOLDER/text.txt
tokenizer = char
packing = none
document_separator = blank_line
validation_fraction = 0.2
cache = FOLDER/cache
[batch]
sequence_length = 64
micro = 2
global = 10
[schedule]
name = cosine
learning_rate = 3e-3
warmup_steps = 5
[precision]
compute = fp32
[evaluation]
every_steps = 6
[checkpoint]
every_steps = 0
[log]
every_steps = 10
parameter_hash_every_steps = 1
[watchdog]
enabled = false
)";
constexpr int64_t steps = 40;

std::string read(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

/// Events in the steps of the current run.
struct Events {
  int64_t stop_in = -1;     ///< the step (from 0) in which the last rank gets a request to stop
  int64_t moments_in = -1;  ///< control: the step in which the moments are zero
} events;

void see_step(const StepUnderWay& step) {
  if (step.step == events.stop_in && step.rank + 1 == communicator().size()) request_stop(SIGUSR1);
  if (step.step != events.moments_in) return;
  for (int unit = 0; unit < step.params.units().size(); ++unit) {
    const ParamStore::Shard shard = step.params.shard(unit, 0);
    const std::vector<float> zeros(static_cast<size_t>(shard.states[1].numel()));
    for (const Tensor& moment : {shard.states[1], shard.states[2]}) {
      copy_to_device(moment.data, zeros.data(), moment.bytes(), test::stream());
    }
    test::stream().synchronize();
  }
}

class Restart : public ::testing::Test {
 protected:
  Restart() {
    std::string shared = communicator().rank() == 0 ? own_.text() : "";
    communicator().broadcast(shared);
    folder = shared;
    if (communicator().rank() == 0) {
      std::string text;
      for (int i = 0; i < 48; ++i) {
        text += "Document " + std::to_string(i * 7919 % 1000) + " says";
        for (int w = 0; w <= i * 13 % 5; ++w) text += " word" + std::to_string((i * 31 + w * w) % 17);
        text += ".\n\n";
      }
      std::ofstream(folder / "text.txt") << text;
      std::string deck = deck_text;
      for (size_t at = deck.find("FOLDER"); at != std::string::npos; at = deck.find("FOLDER")) {
        deck.replace(at, 6, shared);
      }
      std::ofstream(folder / "deck.ini") << deck;
    }
    communicator().barrier();
    step_hook = see_step;
  }
  void TearDown() override {
    step_hook = nullptr;
    communicator().barrier();
  }

  /// Returns its exit code.
  int run(const std::string& name, const Events& what, const std::vector<std::string>& overrides = {}) const {
    request_stop(0);
    communicator().barrier();
    events = what;
    CommandLine command;
    command.deck = (folder / "deck.ini").string();
    command.overrides = {"run.name=" + name};
    command.overrides.insert(command.overrides.end(), overrides.begin(), overrides.end());
    testing::internal::CaptureStdout();  // a line for each step
    testing::internal::CaptureStderr();
    int code = -1;
    std::string error;
    try {
      code = run_program(command, runtime());
    } catch (const UserError& user_error) {
      error = user_error.what();
    }
    testing::internal::GetCapturedStdout();
    testing::internal::GetCapturedStderr();
    EXPECT_EQ(error, "");
    communicator().barrier();
    return code;
  }
  std::string ledger(const std::string& name) const { return read(folder / name / "ledger.jsonl"); }
  void copy_run(const std::string& from, const std::string& to) const {
    if (communicator().rank() == 0) {
      fs::copy(folder / from, folder / to, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    }
    communicator().barrier();
  }
  void change_manifest(const std::string& name, const std::function<void(Manifest&)>& change) const {
    if (communicator().rank() == 0) {
      const fs::path path = folder / name / "checkpoints/latest/manifest.json";
      Manifest manifest = parse_manifest(read(path), path.string());
      change(manifest);
      std::ofstream(path, std::ios::binary) << to_text(manifest);
    }
    communicator().barrier();
  }
  /// True if the ledger of a control, which ends after `step`, is a prefix of the correct one.
  bool begins_like(const std::string& control, const std::string& whole, int64_t step) const {
    const std::string text = ledger(control);
    EXPECT_NE(text.find("{\"step\":" + std::to_string(step) + ","), std::string::npos) << text;
    return whole.compare(0, text.size(), text) == 0;
  }
  /// One more step from the checkpoint after step k, with one part of the state wrong, each in turn.
  void expect_controls_differ(const std::string& name, int64_t k, const std::string& whole) const {
    const std::string control = name + "-control";
    copy_run(name, control);
    Events what{.stop_in = k, .moments_in = -1};
    std::vector<std::string> overrides;
    if (k % 5 == 1) overrides = {"schedule.learning_rate=3.0001e-3"};
    if (k % 5 == 2) what.moments_in = k;
    if (k % 5 == 3) change_manifest(control, [&](Manifest& m) { m.run.skipped = {{k, k + 1}}; });
    if (k % 5 == 4) {  // random numbers, and the order of samples
      overrides = {"run.seed=43"};
      change_manifest(control, [](Manifest& m) {  // run.seed, and data.seed, which follows it
        for (size_t at = 0; (at = m.deck.find("seed = 42", at)) != std::string::npos;) m.deck[at + 8] = '3';
      });
    }
    const bool wrong = k % 5 != 0;  // else a control of the controls
    EXPECT_EQ(run(control, what, overrides), 75);
    EXPECT_EQ(begins_like(control, whole, k + 1), !wrong) << "behind step " << k;
  }

  fs::path folder;

 private:
  test::TemporaryFolder own_;  // rank 0's folder serves all ranks
};

TEST_F(Restart, BehindEveryStepGoesOnWithTheSameBytes) {
  ASSERT_EQ(run("whole", {}), 0);
  const std::string whole = ledger("whole");
  ASSERT_NE(whole.find("{\"step\":36,\"validation_loss\""), std::string::npos) << whole;
  for (int64_t k = 1; k <= steps; ++k) {
    const std::string name = "cut" + std::to_string(k);
    EXPECT_EQ(run(name, {.stop_in = k - 1}), 75);  // also after the last step, since an evaluation is pending
    EXPECT_EQ(whole.compare(0, ledger(name).size(), ledger(name)), 0);
    EXPECT_EQ(ledger(name).find("{\"step\":" + std::to_string(k + 1) + ","), std::string::npos) << "it was stopped";
    if (k < steps) expect_controls_differ(name, k, whole);
    EXPECT_EQ(run(name, {}, {"checkpoint.at_end=false"}), 0);
    EXPECT_EQ(ledger(name), whole) << "stopped behind step " << k;
  }
}

}  // namespace
}  // namespace llmtrain
