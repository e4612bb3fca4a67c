// --estimate --measure in whole programs: its format; benchmarks/measure.py compares it with runs.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "decks/program.hpp"

namespace llmtrain::test {
namespace {

std::vector<std::string> deck(const TemporaryFolder& folder, int evaluated_every = 300) {
  return {(source_folder() / "inputs/quickstart.ini").string(),
          "run.output=" + (folder / "runs").string(),
          "run.max_steps=1000",
          "model.d_model=48",
          "model.n_layers=2",
          "data.cache=" + (folder / "cache").string(),
          "batch.sequence_length=64",
          "evaluation.every_steps=" + std::to_string(evaluated_every),
          "evaluation.at_start=true",
          "evaluation.batches=2",
          "--estimate",
          "--measure"};
}

TEST(Measure, PredictsTheTimeOfStepsAndTheRunAndWritesNothing) {
  for (const int ranks : {1, 2}) {
    const TemporaryFolder folder;
    std::vector<std::string> arguments = deck(folder, ranks == 1 ? 300 : 250);
    arguments.emplace_back("--json");
    const Outcome outcome = llmtrain({ranks, 1, arguments});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    const auto j = nlohmann::json::parse(outcome.output.substr(outcome.output.find('{')));
    const double step = j["seconds_per_step"], evaluation = j["seconds_per_evaluation"];
    EXPECT_EQ(j["ranks"], ranks);
    EXPECT_GT(step, 0);
    EXPECT_GT(evaluation, 0);
    EXPECT_GE(j["measured_steps"], 5);
    EXPECT_EQ(j["steps"], 1000);
    EXPECT_EQ(j["evaluations"], 5) << "at the start, after 300, 600, 900 (250, 500, 750), and at the end, once";
    EXPECT_NEAR(j["seconds_of_run"], 1000 * step + 5 * evaluation, 1e-6 * 1000 * step);
    const double tokens = j["tokens_per_second"].get<double>() * step;
    EXPECT_GT(tokens, 100) << "of a step";
    EXPECT_LT(tokens, 8 * 64 - 8) << "many stories are shorter than a sequence";
    EXPECT_FALSE(std::filesystem::exists(folder / "runs"));
  }
}

TEST(Measure, SaysSoToPeopleToo) {
  const TemporaryFolder folder;
  const Outcome outcome = llmtrain({1, 1, deck(folder)});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  for (const char* what : {"per step", "tok/s", "per evaluation", "whole run", "(1000 steps"}) {
    EXPECT_NE(outcome.output.find(what), std::string::npos) << what << "\n" << outcome.output;
  }
}

TEST(Measure, EstimatesAloneTimeNothing) {
  const TemporaryFolder folder;
  std::vector<std::string> arguments = deck(folder);
  arguments.back() = "--json";
  const Outcome outcome = llmtrain({1, 1, arguments});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(outcome.output.find("seconds"), std::string::npos) << outcome.output;
}

}  // namespace
}  // namespace llmtrain::test
