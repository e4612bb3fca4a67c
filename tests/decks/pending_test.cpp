// Requests in the middle of an evaluation or of samples: a stop interrupts both, and pending work is done when the run
// resumes, so that its files equal those of an uninterrupted run.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "decks/run_folder.hpp"

namespace llmtrain::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

const TinyDeck deck{10, "dropout = 0.1\n",
                    "[evaluation]\nevery_steps = 4\n[log]\nevery_steps = 3\nsamples_every_steps = 4\nsample_prompts = "
                    "Line 1, Line 2\nsample_length = 5\n[checkpoint]\nevery_steps = 8\n"};

class Pending : public RunFolder {
 protected:
  Pending() : RunFolder(text_of_lines(60), deck.text()) {}
  Outcome run(const std::string& name, int ranks, const std::string& faults,
              const std::vector<std::string>& overrides = {}) const {
    return start(name, ranks, overrides, faults);
  }
  /// Lines of metrics.jsonl about evaluations, without times.
  std::string evaluations(const std::string& name) const {
    std::string all;
    std::istringstream text(read_file(folder / (name + "/metrics.jsonl")));
    for (std::string line; std::getline(text, line);) {
      nlohmann::json json = nlohmann::json::parse(line);
      if (!json.contains("validation_loss")) continue;
      for (const char* key : {"wall_time", "seconds"}) json.erase(key);
      all += json.dump() + "\n";
    }
    return all;
  }
  std::string rows_of_metrics_h5(const std::string& name) const {
    std::istringstream text(llmtool({"inspect", (folder / (name + "/metrics.h5")).string()}).output);
    std::string rows;
    for (std::string line; std::getline(text, line);) {
      if (line.find("perplexity") != std::string::npos) rows += line;
    }
    return rows;
  }
  int samples_shown(const std::string& name) const {
    int shown = 0;
    std::istringstream text(read_file(folder / (name + "/log.txt")));
    for (std::string line; std::getline(text, line);) shown += line.ends_with("  sample") ? 1 : 0;
    return shown;
  }
  void expect_stopped(const std::string& name, const Outcome& outcome, const std::string& where,
                      const std::string& checkpoint) const {
    EXPECT_EQ(outcome.exit_code, 75) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("stopped by SIGUSR1 in " + where));
    EXPECT_EQ(linked(name, "latest"), checkpoint);
    EXPECT_FALSE(fs::exists(folder / (name + "/finished.json")));
  }
  void expect_goes_on(const std::string& name, int ranks, const std::string& whole,
                      const std::vector<std::string>& overrides = {}) const {
    const Outcome outcome = run(name, ranks, "", overrides);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_EQ(ledger(name), ledger(whole));
    EXPECT_EQ(evaluations(name), evaluations(whole));
    EXPECT_EQ(rows_of_metrics_h5(name), rows_of_metrics_h5(whole));
    EXPECT_EQ(samples_shown(name), samples_shown(whole));
    EXPECT_EQ(linked(name, "best"), linked(whole, "best"));
  }
};

TEST_F(Pending, AStopInsideAnEvaluationIsMadeUpFor) {
  ASSERT_EQ(run("whole", 1, "").exit_code, 0);
  EXPECT_THAT(ledger("whole"), HasSubstr("{\"step\":8,\"validation_loss\""));
  EXPECT_EQ(samples_shown("whole"), 6);
  EXPECT_THAT(rows_of_metrics_h5("whole"), HasSubstr(" 3 ")) << "the rows that are compared";

  // Rank 1 of two; each has three units of work per evaluation.
  expect_stopped("cut", run("cut", 2, "signal evaluation 4 1 10"), "an evaluation after 8 of", "step-00000008");
  EXPECT_THAT(ledger("cut"), HasSubstr("{\"step\":8,\"learning_rate\""));
  EXPECT_THAT(ledger("cut"), Not(HasSubstr("{\"step\":8,\"validation_loss\""))) << "it was left";
  // The same evaluation again, then samples after it.
  expect_stopped("cut", run("cut", 1, "signal evaluation 0 0 10"), "an evaluation after 8 of", "step-00000008");
  expect_stopped("cut", run("cut", 1, "signal sampling 1 0 10"), "sampling after 8 of", "step-00000008");
  EXPECT_THAT(ledger("cut"), HasSubstr("{\"step\":8,\"validation_loss\""));
  EXPECT_EQ(samples_shown("cut"), 2);
  // The last evaluation.
  expect_stopped("cut", run("cut", 3, "signal evaluation 1 2 10"), "an evaluation after 10 of", "step-00000010");
  expect_goes_on("cut", 1, "whole");
  // A checkpoint of a step without an evaluation.
  expect_stopped("early", run("early", 1, "signal evaluation 3 0 10"), "an evaluation after 4 of", "step-00000004");
  expect_goes_on("early", 2, "whole");
}

TEST_F(Pending, EarlyStoppingIsDecidedAlike) {
  const std::vector<std::string> bad = {"schedule.learning_rate=3", "evaluation.early_stopping_patience=1",
                                        "optimizer.max_grad_norm=0"};
  const Outcome whole = run("whole", 1, "", bad);
  EXPECT_EQ(whole.exit_code, 0);
  EXPECT_THAT(whole.output, HasSubstr("stopped early after 8 steps"));
  expect_stopped("cut", run("cut", 1, "signal evaluation 10 0 10", bad), "an evaluation after 8 of", "step-00000008");
  expect_goes_on("cut", 2, "whole", bad);
}

TEST_F(Pending, TheFileSaveDoesNotWaitForTheEndOfAnEvaluation) {
  ASSERT_EQ(run("whole", 1, "").exit_code, 0);
  fs::create_directories(folder / "saved");
  const std::string file = (folder / "saved/SAVE").string();
  const std::vector<std::string> alone = {"checkpoint.every_steps=0", "checkpoint.at_end=false"};
  const auto run_on = [&](const std::string& faults) { return run("saved", 1, faults, alone); };
  // Files are checked twice a second: the request exists from the first unit of work of the evaluation on, and is seen
  // at the latest in a unit that takes long.
  const Outcome saved = run_on("save evaluation 0 0 " + file + ";wait evaluation 2 0 600");
  EXPECT_EQ(saved.exit_code, 0) << saved.output;
  EXPECT_EQ(linked("saved", "latest"), "step-00000004");
  EXPECT_FALSE(fs::exists(file));
  // As if the job had been killed then, or at any time since.
  fs::remove(folder / "saved/finished.json");
  const Outcome again = run_on("");
  EXPECT_EQ(again.exit_code, 0) << again.output;
  EXPECT_THAT(again.output, HasSubstr("step-00000004, step 4"));
  EXPECT_THAT(again.output, HasSubstr("\nstep 4  validation loss")) << "it was saved before the evaluation had ended";
  for (const char* where : {"\"step\":4,\"val", "\"step\":8,\"val"}) EXPECT_THAT(ledger("saved"), HasSubstr(where));
  EXPECT_EQ(evaluations("saved"), evaluations("whole"));
  EXPECT_EQ(rows_of_metrics_h5("saved"), rows_of_metrics_h5("whole"));
}

}  // namespace
}  // namespace llmtrain::test
