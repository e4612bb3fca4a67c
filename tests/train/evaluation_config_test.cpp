// Decks whose evaluations or curriculum cannot do what is asked of them are refused when they are read, by key.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "train/config/load_config.hpp"

namespace llmtrain {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string errors_of(const std::vector<std::string>& arguments) {
  try {
    load_config(
        "[run]\nmax_steps = 10\n[model]\nd_model = 64\nn_layers = 2\nn_heads = 4\n[data]\ntrain = rows.txt\n[batch]\n"
        "sequence_length = 32\n",
        "tiny.ini", arguments, DeckFiles::recorded);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::deck);
    return error.what();
  }
  return "no error";
}

TEST(EvaluationDeck, EarlyStoppingNeedsAMetricThatIsMeasured) {
  std::vector<std::string> rules = {"evaluation.early_stopping_patience=2", "data.validation_fraction=0",
                                    "evaluation.tasks=rows.jsonl"};
  EXPECT_THAT(errors_of(rules), AllOf(HasSubstr("evaluation.early_stopping_patience: without validation data there is "
                                                "no validation/loss"),
                                      HasSubstr("such as validation/NAME/acc")));
  rules.emplace_back("checkpoint.best_metric=validation/rows/acc");
  EXPECT_EQ(errors_of(rules), "no error") << "control";
  rules = {"evaluation.load_best_at_end=true", "data.validation_fraction=0", "evaluation.tasks=rows.jsonl"};
  EXPECT_THAT(errors_of(rules), HasSubstr("evaluation.load_best_at_end: without validation data"));
}

TEST(EvaluationDeck, SaysHowLevelsAreWritten) {
  const std::vector<std::string> steps = {"curriculum.strategy=length", "curriculum.shape=steps"};
  EXPECT_THAT(errors_of(steps), HasSubstr("curriculum.levels: is required with shape = steps: VALUE:STEP"));
  for (const char* levels : {"16:x, 32", "16, 32", "32:10, 16"}) {
    EXPECT_THAT(errors_of({steps[0], steps[1], std::string("curriculum.levels=") + levels}),
                HasSubstr("curriculum.levels: must be VALUE:STEP, ..., VALUE"));
  }
  EXPECT_EQ(errors_of({steps[0], steps[1], "curriculum.levels=16:10, 32"}), "no error") << "control";
}

}  // namespace
}  // namespace llmtrain
