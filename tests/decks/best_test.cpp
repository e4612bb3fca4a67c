// The best model of a run: its metric, the retention of its checkpoint, and its export.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "decks/run_folder.hpp"

namespace llmtrain::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const TinyDeck deck{8, "family = llama\n",
                    "[evaluation]\nevery_steps = 1\n[optimizer]\nmax_grad_norm = 0\n[divergence]\nskip_steps = 2\n"
                    "[checkpoint]\nevery_steps = 4\nkeep = 2\n"};

class Best : public RunFolder {
 protected:
  Best() : RunFolder(text_of_lines(60), deck.text()) {}
  Outcome run(const std::string& name, const std::string& faults, const std::vector<std::string>& overrides,
              int ranks = 1) const {
    return start(name, ranks, overrides, faults);
  }
  void run_to_end(const std::string& name, const std::string& faults, const std::vector<std::string>& overrides,
                  int ranks = 1) const {
    const Outcome outcome = run(name, faults, overrides, ranks);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  }
  std::string exported(const std::string& name) const {
    return read_file(folder / (name + "/export/model.safetensors"));
  }
  std::string best(const std::string& name) const { return linked(name, "best"); }
  std::vector<nlohmann::json> evaluations(const std::string& name) const {
    std::vector<nlohmann::json> all;
    std::istringstream text(read_file(folder / (name + "/metrics.jsonl")));
    for (std::string line; std::getline(text, line);) {
      const auto json = nlohmann::json::parse(line);
      if (json.contains("validation_loss")) all.push_back(json);
    }
    return all;
  }

  /// From the fourth step on every step makes the model worse.
  static constexpr const char* worse =
      "rate step 3 -1 -30;rate step 4 -1 -30;rate step 5 -1 -30;rate step 6 -1 -30;rate step 7 -1 -30";
};

TEST_F(Best, ItsWeightsAreExportedWhateverIsBehindIt) {
  run_to_end("three", worse, {"run.max_steps=3", "checkpoint.export=last"});
  const std::string expected = exported("three");
  run_to_end("last", worse, {"checkpoint.export=last"});
  EXPECT_FALSE(exported("last") == expected) << "control";
  run_to_end("best", worse, {"checkpoint.export=best"}, 2);
  EXPECT_TRUE(exported("best") == expected);
  EXPECT_EQ(best("best"), "step-00000003") << "which no schedule has saved";
  run_to_end("loaded", worse, {"checkpoint.export=last", "evaluation.load_best_at_end=true"});
  EXPECT_TRUE(exported("loaded") == expected);
  EXPECT_EQ(read_file(folder / "loaded/ledger.jsonl"), read_file(folder / "last/ledger.jsonl"));
  // Stopped after it.
  const std::string stopped = std::string(worse) + ";signal step 5 0 10";
  EXPECT_EQ(run("cut", stopped, {"checkpoint.export=best"}, 2).exit_code, 75);
  EXPECT_FALSE(fs::exists(folder / "cut/export"));
  run_to_end("cut", worse, {"checkpoint.export=best"});
  EXPECT_TRUE(exported("cut") == expected);
}

TEST_F(Best, IsNeverOfStepsThatWereGivenUp) {
  // Step 4, the rollback target, is not the best before it; later steps are better, but are discarded.
  const std::string faults =
      "rate step 3 -1 -0.1;gradient data 6 0 nan;gradient data 7 0 nan;gradient data 8 0 nan;rate data 9 -1 -30;"
      "rate data 10 -1 -30";
  const std::vector<std::string> rules = {"checkpoint.export=best", "schedule.learning_rate=3e-3"};
  run_to_end("three", faults, {"run.max_steps=3", "checkpoint.export=last", rules[1]});
  run_to_end("six", faults, {"run.max_steps=6", rules[0], rules[1]});
  EXPECT_EQ(best("six"), "step-00000006") << "the best before it is given up";
  EXPECT_FALSE(exported("six") == exported("three"));
  const Outcome outcome = run("back", faults + ";rate data 11 -1 -30;rate data 12 -1 -30;rate data 13 -1 -30",
                              {rules[0], rules[1], "run.max_steps=9"}, 2);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("returning to the checkpoint of step 4"));
  EXPECT_EQ(best("back"), "step-00000003") << outcome.output;
  EXPECT_TRUE(exported("back") == exported("three"));
}

TEST_F(Best, ADamagedOneEndsTheRunWithItsLastStateSaved) {
  const std::vector<std::string> rules = {"checkpoint.export=best", "checkpoint.every_steps=3",
                                          "checkpoint.at_end=false"};
  // Stopped after the best step; then its checkpoint is damaged, and the same command resumes.
  EXPECT_EQ(run("cut", std::string(worse) + ";signal step 4 0 10", rules).exit_code, 75);
  ASSERT_EQ(best("cut"), "step-00000003");
  fs::resize_file(checkpoint("cut", 3) / "view.h5", 100);
  const Outcome damaged = run("cut", worse, rules, 2);
  EXPECT_EQ(damaged.exit_code, 65) << damaged.output;
  EXPECT_THAT(damaged.output, HasSubstr("the best checkpoint, of step 3, cannot be read"));
  EXPECT_THAT(damaged.output, HasSubstr("view.h5: 100 bytes instead of"));
  EXPECT_THAT(damaged.output, HasSubstr("saved as step-00000008"));
  EXPECT_EQ(llmtool({"verify", checkpoint("cut", 8).string()}).exit_code, 0) << "the last state is safe";
  EXPECT_FALSE(fs::exists(folder / "cut/finished.json"));
  EXPECT_FALSE(fs::exists(folder / "cut/export")) << "nothing takes the place of the best in silence";
  // The action that the message proposes.
  run_to_end("last", worse, {"checkpoint.export=last", rules[1]});
  run_to_end("cut", worse, {"checkpoint.export=last", rules[1], "evaluation.load_best_at_end=false"});
  EXPECT_TRUE(exported("cut") == exported("last"));
  EXPECT_EQ(ledger("cut"), ledger("last"));
}

TEST_F(Best, ByTokenAccuracyWhereItIsAskedFor) {
  const std::vector<std::string> rules = {"checkpoint.best_metric=validation/token_accuracy", "checkpoint.keep=100",
                                          "evaluation.load_best_at_end=true"};
  run_to_end("one", "", rules);
  run_to_end("three", "", rules, 3);
  double highest = 0;
  int64_t best_step = 0;
  const auto one = evaluations("one"), three = evaluations("three");
  ASSERT_EQ(one.size(), 8U);
  for (size_t i = 0; i < one.size(); ++i) {
    const auto accuracy = one[i].at("validation_token_accuracy").get<double>();
    EXPECT_EQ(three[i].at("validation_token_accuracy"), accuracy);
    EXPECT_EQ(one[i]["best"], accuracy > highest);
    if (accuracy > highest) best_step = one[i]["step"];
    highest = std::max(highest, accuracy);
    EXPECT_EQ(fs::exists(folder / ("one/checkpoints/step-0000000" + std::to_string(i + 1))),
              one[i]["best"] || i % 4 == 3);
  }
  EXPECT_GT(highest, 0);
  EXPECT_EQ(best("one"), "step-0000000" + std::to_string(best_step));
  EXPECT_EQ(read_file(folder / "one/ledger.jsonl"), read_file(folder / "three/ledger.jsonl"));
  run_to_end("loss", "", {});
  EXPECT_FALSE(evaluations("loss").front().contains("validation_token_accuracy")) << "it costs time";
}

}  // namespace
}  // namespace llmtrain::test
