// The training loop: length of a run, evaluations, early stopping and samples.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "decks/run_folder.hpp"

namespace llmtrain::test {
namespace {

class Loop : public RunFolder {
 protected:
  Loop()
      : RunFolder(text_of_lines(40),
                  "[run]\nmax_steps = 12\noutput = FOLDER\n[model]\nd_model = 16\nn_layers = 1\nn_heads = 2\n"
                  "[data]\ntrain = TEXT\n[batch]\nsequence_length = 8\nglobal = 4\n") {}

  /// Starts a new run; returns the lines of its ledger.
  std::vector<nlohmann::json> ledger(const std::vector<std::string>& overrides, int ranks = 1) {
    outcome = start(std::to_string(++runs), ranks, overrides);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    std::vector<nlohmann::json> lines;
    std::istringstream text(RunFolder::ledger(std::to_string(runs)));
    for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }

  static std::vector<int64_t> evaluated(const std::vector<nlohmann::json>& lines) {
    std::vector<int64_t> steps;
    for (const auto& line : lines) {
      if (line.contains("validation_loss")) steps.push_back(line["step"]);
    }
    return steps;
  }
  static int64_t last_step(const std::vector<nlohmann::json>& lines) {
    int64_t step = 0;
    for (const auto& line : lines) step = std::max<int64_t>(step, line["step"]);
    return step;
  }

  Outcome outcome;
  int runs = 0;
};

TEST_F(Loop, EvaluatesWhenTheDeckSays) {
  EXPECT_EQ(evaluated(ledger({"evaluation.every_steps=5", "evaluation.at_start=true"})),
            (std::vector<int64_t>{0, 5, 10, 12}));
  EXPECT_EQ(evaluated(ledger({"evaluation.every_steps=6", "evaluation.at_end=false"})), (std::vector<int64_t>{6, 12}));
  EXPECT_EQ(evaluated(ledger({"evaluation.every_steps=0", "evaluation.at_end=false"})), (std::vector<int64_t>{}));
}

TEST_F(Loop, AFewBatchesAreTheFirstOnes) {
  const auto all = ledger({"evaluation.at_start=true", "run.max_steps=1", "evaluation.at_end=false"});
  const auto few =
      ledger({"evaluation.at_start=true", "run.max_steps=1", "evaluation.at_end=false", "evaluation.batches=1"});
  const auto many =
      ledger({"evaluation.at_start=true", "run.max_steps=1", "evaluation.at_end=false", "evaluation.batches=1000"});
  EXPECT_NE(few.front()["validation_loss"], all.front()["validation_loss"]);
  EXPECT_EQ(many.front()["validation_loss"], all.front()["validation_loss"]);
}

TEST_F(Loop, StopsEarlyWithoutImprovement) {
  const std::vector<std::string> still = {"schedule.learning_rate=1e-30", "evaluation.every_steps=2",
                                          "evaluation.early_stopping_patience=2", "log.every_steps=100"};
  for (const int ranks : {1, 2}) {
    EXPECT_EQ(last_step(ledger(still, ranks)), 6) << "the first evaluation is an improvement, two are not";
    EXPECT_NE(outcome.output.find("stopped early after 6 steps"), std::string::npos) << outcome.output;
    const std::string metrics = read_file(folder / (std::to_string(runs) + "/metrics.jsonl"));
    EXPECT_NE(metrics.find("{\"step\":6,\"wall_time\""), std::string::npos) << "the last interval is written";
  }
  const std::vector<std::string> moving = {"schedule.learning_rate=1e-3", "evaluation.every_steps=2",
                                           "evaluation.early_stopping_patience=2"};
  EXPECT_EQ(last_step(ledger(moving)), 12) << "a run that learns goes on";
  std::vector<std::string> demanding = moving;
  demanding.emplace_back("evaluation.early_stopping_threshold=10");
  EXPECT_EQ(last_step(ledger(demanding)), 6);
}

TEST_F(Loop, EpochsAreCountedInSteps) {
  // 40 lines minus validation; windows of 8: as many steps as the samples need in groups of 4.
  const int64_t one = last_step(ledger({"run.epochs=1"}));
  EXPECT_EQ(last_step(ledger({"run.epochs=2"})), 2 * one);
  EXPECT_EQ(last_step(ledger({"run.epochs=0.01"})), 1);
  int64_t tokens = 0;
  for (const auto& line : ledger({"run.epochs=1", "evaluation.at_end=false"})) tokens += line["tokens"].get<int64_t>();
  EXPECT_EQ(tokens % 8, 0) << "whole windows";
  EXPECT_EQ((tokens / 8 + 3) / 4, one);
}

TEST_F(Loop, SamplesContinueThePrompts) {
  const std::vector<std::string> sampling = {"log.samples_every_steps=6", "log.sample_prompts=Line 1, words",
                                             "log.sample_length=5"};
  ledger(sampling);
  const std::string first = outcome.output;
  for (const char* part : {"step 6  sample\n  | Line 1", "step 12  sample\n  | words"}) {
    EXPECT_NE(first.find(part), std::string::npos) << part << " in " << first;
  }
  const auto samples = [](const std::string& output) {
    std::string text;
    std::istringstream lines(output);
    for (std::string line; std::getline(lines, line);) text += line.starts_with("  | ") ? line + "\n" : "";
    return text;
  };
  ledger(sampling, 3);
  EXPECT_EQ(samples(outcome.output), samples(first));
  std::vector<std::string> greedy = sampling;
  greedy.emplace_back("log.sample_temperature=0");
  ledger(greedy);
  EXPECT_NE(samples(outcome.output), samples(first));
}

TEST_F(Loop, MetricsCanBeInspected) {
  const auto lines = ledger({"log.every_steps=4", "evaluation.every_steps=0"});
  const Outcome shown = llmtool({"inspect", (folder / "1/metrics.h5").string()});
  EXPECT_EQ(shown.exit_code, 0) << shown.output;
  for (const char* part : {"/train\n", "/validation\n", "nats per token", "learning_rate               4"}) {
    EXPECT_NE(shown.output.find(part), std::string::npos) << part << " in " << shown.output;
  }
}

TEST_F(Loop, ReductionGroupsAreAsManyAsAsked) {
  ledger({"batch.global=9", "parallel.reduction_groups=8"});
  EXPECT_NE(outcome.output.find("8 reduction groups"), std::string::npos) << outcome.output;
}

}  // namespace
}  // namespace llmtrain::test
