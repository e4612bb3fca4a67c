// Divergence handling: bad steps change nothing but their lines in the ledger, the run rolls back and skips data, and
// not one byte of the ledger depends on ranks, stages or interruptions.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "decks/run_folder.hpp"

namespace llmtrain::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using Lines = std::vector<nlohmann::json>;

const DocumentsDeck deck{16, 1, 6, R"([precision]
compute = fp32
[evaluation]
every_steps = 6
[divergence]
max_bad_steps = 2
skip_steps = 0
[checkpoint]
every_steps = 4
keep = 100
[log]
every_steps = 2
every_first = false
parameter_hash_every_steps = 1
)"};

class Divergence : public RunFolder {
 protected:
  Divergence() : RunFolder(text_of_documents(40), deck.text()) {}

  /// A run with faults, in the syntax of tests/decks/faulty.
  Outcome run(const std::string& name, const std::string& faults, int ranks = 1,
              const std::vector<std::string>& overrides = {}) {
    return start(name, ranks, overrides, faults);
  }
  /// The ledger of a successful run.
  std::string ledger_of(const std::string& name, const std::string& faults, int ranks = 1,
                        const std::vector<std::string>& overrides = {}) {
    outcome = run(name, faults, ranks, overrides);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return ledger(name);
  }
  static Lines lines(const std::string& ledger) {
    Lines all;
    std::istringstream text(ledger);
    for (std::string line; std::getline(text, line);) all.push_back(nlohmann::json::parse(line));
    return all;
  }
  /// The last line of a step.
  static nlohmann::json line_of(const Lines& all, int64_t step) {
    nlohmann::json found;
    for (const auto& line : all) {
      if (line["step"] == step && line.contains("samples")) found = line;
    }
    return found;
  }
  nlohmann::json manifest(const std::string& name, int64_t step) const {
    return nlohmann::json::parse(read_file(checkpoint(name, step) / "manifest.json"))["manifest"];
  }

  Outcome outcome;
};

TEST_F(Divergence, ABadStepChangesNothingAndIsTheSameOnAllRanks) {
  const std::string clean = ledger_of("clean", "");
  const std::string expected = ledger_of("bad", "gradient step 5 0 nan");
  const Lines all = lines(expected);
  const nlohmann::json bad = line_of(all, 6), before = line_of(all, 5);
  EXPECT_EQ(bad["grad_norm"], "nan");
  EXPECT_EQ(bad["loss"], line_of(lines(clean), 6)["loss"]) << "the loss was right";
  EXPECT_EQ(bad["samples"], line_of(lines(clean), 6)["samples"]);
  EXPECT_EQ(bad["bad_steps"], 1);
  EXPECT_EQ(bad["sample_ids"].size(), 2u) << "the last step of an epoch is short";
  EXPECT_EQ(bad["parameters"], before["parameters"]) << "the update is skipped";
  EXPECT_NE(line_of(lines(clean), 6)["parameters"], before["parameters"]) << "a control";
  EXPECT_NE(line_of(all, 16)["parameters"], line_of(lines(clean), 16)["parameters"]);
  EXPECT_FALSE(line_of(all, 7).contains("bad_steps"));
  EXPECT_THAT(outcome.output, HasSubstr("warning: step 6: the gradient norm is not finite"));
  EXPECT_EQ(expected.substr(0, expected.find("{\"step\":6,")), clean.substr(0, clean.find("{\"step\":6,")));
  int runs = 0;
  for (const int ranks : {2, 3, 5}) {
    for (const int where : {0, ranks - 1}) {
      const std::string fault = "gradient step 5 " + std::to_string(where) + (where == 0 ? " inf" : " nan");
      std::string got =
          ledger_of("bad" + std::to_string(++runs), fault, ranks, {"parallel.zero=" + std::to_string(runs % 4)});
      if (where == 0) got.replace(got.find("\"inf\""), 5, "\"nan\"");
      EXPECT_EQ(got, expected) << fault << " of " << ranks;
    }
  }
  const Lines loss = lines(ledger_of("loss", "loss step 5 2 nan", 3));
  EXPECT_EQ(line_of(loss, 6)["loss"], "nan");
  EXPECT_EQ(line_of(loss, 16)["parameters"], line_of(all, 16)["parameters"]) << "the same updates";
}

TEST_F(Divergence, GoesBackAndLeavesDataOut) {
  const std::string clean = ledger_of("clean", "");
  const std::string faults = "gradient data 6 0 nan;loss data 7 0 inf";
  const std::string expected = ledger_of("whole", faults);
  const Lines all = lines(expected), good = lines(clean);
  std::vector<nlohmann::json> back;
  for (const auto& line : all) {
    if (line.contains("rolled_back_from")) back.push_back(line);
  }
  ASSERT_EQ(back.size(), 1u) << expected;
  EXPECT_EQ(back[0].dump(), R"({"rolled_back_from":8,"skipped_data":[4,8],"step":4})");
  EXPECT_THAT(outcome.output, HasSubstr("returning to the checkpoint of step 4; the data of the next 4 steps"));
  for (int64_t step = 5; step <= 12; ++step) {
    EXPECT_EQ(line_of(all, step)["samples"], line_of(good, step + 4)["samples"]) << step;
    EXPECT_NE(line_of(all, step)["samples"], line_of(good, step)["samples"]) << step;
    EXPECT_EQ(line_of(all, step)["learning_rate"], line_of(good, step)["learning_rate"]) << step;
  }
  EXPECT_EQ(manifest("whole", 16)["run"]["skipped"], nlohmann::json::parse("[[4,8]]"));
  EXPECT_EQ(llmtool({"verify", checkpoint("whole", 4).string()}).exit_code, 0);
  EXPECT_EQ(linked("whole", "latest"), "step-00000016");
  // metrics.jsonl has every step once.
  int64_t last = 0;
  std::istringstream metrics(read_file(folder / "whole/metrics.jsonl"));
  for (std::string text; std::getline(metrics, text);) {
    const auto line = nlohmann::json::parse(text);
    if (!line.contains("tokens_per_second")) continue;
    EXPECT_EQ(line["step"], last + 2);
    EXPECT_TRUE(line["loss_mean"].is_number()) << text;
    last = line["step"];
  }
  EXPECT_EQ(last, 16);
  for (const int ranks : {2, 4}) {
    EXPECT_EQ(ledger_of("whole" + std::to_string(ranks), faults, ranks, {"parallel.zero=3"}), expected) << ranks;
  }
  EXPECT_NE(ledger_of("more", faults, 1, {"divergence.skip_steps=6"}), expected);
  EXPECT_EQ(manifest("more", 16)["run"]["skipped"], nlohmann::json::parse("[[4,10]]"));
}

TEST_F(Divergence, WhatIsLeftOutStaysSoWhereverTheRunIsCutOff) {
  const std::string faults = "gradient data 6 0 nan;gradient data 7 0 nan";
  const std::string expected = ledger_of("whole", faults, 2, {"checkpoint.every_steps=2"});
  ASSERT_THAT(expected, HasSubstr("{\"step\":6,\"rolled_back_from\":8,\"skipped_data\":[6,8]}"));
  const std::vector<std::string> often = {"checkpoint.every_steps=2"};
  for (const int step : {6, 8, 10, 14}) {  // without the faults: the skipped data must be known from the checkpoint
    cut_off("whole", "cut", step);
    EXPECT_EQ(ledger_of("cut", "", step % 3 + 1, often), expected) << "from step " << step;
    EXPECT_THAT(outcome.output, Not(HasSubstr("returning to the checkpoint")));
  }
  for (const int step : {2, 4}) {  // with the faults: everything is repeated
    cut_off("whole", "cut", step);
    EXPECT_EQ(ledger_of("cut", faults, step, often), expected) << "from step " << step;
  }
  cut_off("whole", "cut", 4);  // control: without faults, from before the first
  EXPECT_NE(ledger_of("cut", "", 1, often), expected);
}

TEST_F(Divergence, AStopAmongBadStepsChangesNothing) {
  const std::string faults = "gradient data 6 0 nan;gradient data 7 0 nan";
  const std::string expected = ledger_of("whole", faults);
  for (const int step : {5, 6, 9}) {
    const std::string name = "stopped" + std::to_string(step);
    const Outcome stopped = run(name, faults + ";signal step " + std::to_string(step) + " 0 10", 2);
    ASSERT_EQ(stopped.exit_code, 75) << stopped.output;
    EXPECT_EQ(ledger_of(name, faults, 3, {"checkpoint.keep=1"}), expected) << step;
  }
}

TEST_F(Divergence, AStateThatBlowsUpIsNotSaved) {
  // The update of step 8 makes the parameters infinite; its loss and gradient were finite.
  const std::string faults = "rate data 7 -1 1e60";
  const std::string expected = ledger_of("whole", faults, 2, {"optimizer.max_grad_norm=0"});
  EXPECT_THAT(expected, HasSubstr("{\"step\":4,\"rolled_back_from\":8,\"skipped_data\":[4,8]}"));
  EXPECT_THAT(outcome.output, HasSubstr("the parameters or moments are not finite"));
  cut_off("whole", "cut", 8);
  EXPECT_EQ(ledger_of("cut", "", 3, {"optimizer.max_grad_norm=0"}), expected)
      << "nothing of the bad numbers stays in the memory of the process that went back";
}

TEST_F(Divergence, ScoresThatAreNotFiniteRollBack) {
  const std::string text = read_file(folder / "text.txt");
  const nlohmann::json row = {
      {"context", text.substr(0, 8)}, {"choices", {text.substr(8, 4), text.substr(9, 4)}}, {"answer", 0}};
  write_file(folder / "choices.jsonl", row.dump() + "\n");
  const std::vector<std::string> rules = {"optimizer.max_grad_norm=0", "data.validation_fraction=0",
                                          "evaluation.tasks=" + (folder / "choices.jsonl").string()};
  const std::string expected = ledger_of("whole", "rate data 5 -1 1e60", 2, rules);
  EXPECT_THAT(outcome.output, HasSubstr("choices.jsonl: a log-probability is not finite"));
  EXPECT_THAT(expected, HasSubstr("{\"step\":4,\"rolled_back_from\":6,\"skipped_data\":[4,6]}"));
  EXPECT_THAT(ledger_of("sound", "", 2, rules), Not(HasSubstr("rolled_back_from"))) << "control";
}

TEST_F(Divergence, TheLastStepMayBeBad) {
  const std::string expected = ledger_of("last", "loss step 15 0 nan");
  EXPECT_EQ(manifest("last", 16)["run"]["counters"]["bad_steps"], 1) << "its checkpoint is published";
  EXPECT_EQ(ledger_of("ranks", "loss step 15 1 nan", 2), expected);
}

TEST_F(Divergence, GivesUpAfterSoManyTimes) {
  const std::string faults = "loss step 6 0 nan;loss step 7 0 nan";  // independent of the data
  const Outcome given_up = run("run", faults, 2, {"divergence.max_rollbacks=2"});
  EXPECT_EQ(given_up.exit_code, 79) << given_up.output;
  EXPECT_THAT(given_up.output, HasSubstr("2 times after the run had rolled back"));
  EXPECT_THAT(given_up.output, HasSubstr("the same command resumes from step 4"));
  const std::string text = ledger("run");
  EXPECT_THAT(text, HasSubstr("{\"step\":4,\"rolled_back_from\":8,\"skipped_data\":[4,8]}"));
  EXPECT_THAT(text, HasSubstr("{\"step\":4,\"rolled_back_from\":8,\"skipped_data\":[8,12]}"));
  EXPECT_EQ(manifest("run", 4)["run"]["skipped"], nlohmann::json::parse("[[4,8],[8,12]]"));
  EXPECT_FALSE(fs::exists(checkpoint("run", 8)));
  EXPECT_FALSE(fs::exists(folder / "run/finished.json"));
  EXPECT_EQ(run("run", "", 1, {"divergence.max_rollbacks=2"}).exit_code, 0) << "the cause is gone";
  const Outcome early = run("early", "loss step 1 0 nan;loss step 2 0 nan");
  EXPECT_EQ(early.exit_code, 79);
  EXPECT_THAT(early.output, HasSubstr("step 3: the loss is not finite, as one of 2 bad steps in a row"));
  EXPECT_THAT(early.output, HasSubstr("no checkpoint to roll back to"));
  EXPECT_THAT(early.output, HasSubstr("schedule.learning_rate"));
  const Outcome never = run("never", faults, 1, {"divergence.max_rollbacks=0"});
  EXPECT_EQ(never.exit_code, 79);
}

}  // namespace
}  // namespace llmtrain::test
