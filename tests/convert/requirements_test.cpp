// Every block of settings of five systems' documents (tests/convert/requirements/SYSTEM/) converts without an unknown
// key, passes the check of its files, and trains a small shape for two steps.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "converted.hpp"
#include "harness/harness.hpp"
#include "tasks/program.hpp"

namespace llmtrain::test {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> blocks() {
  std::vector<std::string> paths;
  for (const auto& entry : fs::recursive_directory_iterator("tests/convert/requirements")) {
    if (entry.is_regular_file()) paths.push_back(entry.path().string());
  }
  std::ranges::sort(paths);
  return paths;
}

/// Runs the program without its output; returns the error, or "".
std::string run_quietly(const CommandLine& command) {
  testing::internal::CaptureStdout();
  std::string error;
  try {
    const int code = run_program(command, runtime());
    if (code != 0) error = fmt::format("exit code {}", code);
  } catch (const std::exception& failure) {
    error = failure.what();
  }
  testing::internal::GetCapturedStdout();
  return error;
}

class RequirementBlocks : public ConvertTest, public testing::WithParamInterface<std::string> {
 protected:
  std::string system() const { return fs::path(GetParam()).parent_path().filename(); }
  convert::Conversion conversion() const { return converted(GetParam(), {.from = system(), .task = "", .ranks = 0}); }

  /// Keys that complete a deck: a small shape, files, two steps.
  std::vector<std::string> completion(const std::string& deck) const {
    const auto has = [&deck](const std::string& line) { return deck.find("\n" + line) != std::string::npos; };
    std::vector<std::string> keys = {"run.output=" + folder(),   "run.name=run",          "run.max_steps=2",
                                     "batch.sequence_length=24", "batch.micro=1",         "batch.global=2",
                                     "evaluation.batches=2",     "watchdog.enabled=false"};
    const bool new_model = has("task = pretrain") && !has("finetuning = lora") && !has("path = ");
    const std::vector<std::string> shape = {"model.d_model=16", "model.n_layers=1", "model.n_heads=2", "model.d_ff=32",
                                            "model.max_seq_len=24"};
    if (new_model) keys.insert(keys.end(), shape.begin(), shape.end());
    if (!new_model) keys.emplace_back("model.path=tests/reference/sft/model");
    const std::string data = has("task = dpo")   ? "tests/reference/preference/texts.jsonl"
                             : has("task = sft") ? "tests/reference/sft/completions.jsonl"
                                                 : "LICENSE";
    keys.push_back("data.train=" + data);
    if ((has("train = ") && has("validation = ")) || has("# validation = ")) keys.push_back("data.validation=" + data);
    if (has("strategy = length")) keys.insert(keys.end(), {"curriculum.start=8", "curriculum.end=24"});
    return keys;
  }
};

TEST_P(RequirementBlocks, ConvertsChecksAndTrains) {
  const convert::Conversion out = conversion();
  for (const convert::Finding& finding : out.findings) {
    EXPECT_NE(finding.effect, convert::Effect::unknown) << finding.key << ": " << finding.text;
    EXPECT_FALSE(finding.text.empty()) << finding.key;
  }
  CommandLine command;
  command.deck = file("deck.ini", out.deck);
  command.overrides = completion(out.deck);
  command.check = true;
  EXPECT_EQ(run_quietly(command), "") << out.deck;
  command.check = false;
  EXPECT_EQ(run_quietly(command), "") << out.deck;
  EXPECT_TRUE(fs::exists(folder() + "/run/ledger.jsonl"));
}

/// The control: a deck whose key is wrong does not pass.
TEST_F(ConvertTest, AWrongDeckFailsTheCheck) {
  CommandLine command;
  command.deck = file("deck.ini", "[run]\nmax_steps = none\n");
  command.check = true;
  EXPECT_THROW(run_program(command, runtime()), UserError);
}

std::string name_of(const testing::TestParamInfo<std::string>& parameter) {
  std::string name =
      fs::path(parameter.param).parent_path().filename().string() + "_" + fs::path(parameter.param).stem().string();
  std::ranges::replace(name, '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Documents, RequirementBlocks, testing::ValuesIn(blocks()), name_of);

}  // namespace
}  // namespace llmtrain::test
