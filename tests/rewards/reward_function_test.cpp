// Rule rewards: the value of each for completions whose reward is known, and rows that cannot be scored.
#include "rewards/reward_function.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"

namespace llmtrain {
namespace {

double score(const std::string& function, const std::string& completion, const std::string& columns = "{}",
             size_t tokens = 0) {
  const auto made = make_reward_function(parse_reward(function), Duration{60});
  const std::vector<int32_t> ids(tokens, 1);
  const RewardRow row{"", completion, ids, true, columns};
  double reward = -100;
  made->score({&row, 1}, {&reward, 1}, [] {});
  return reward;
}

TEST(RewardFunctions, ExactComparesWithoutWhiteSpaceAtTheEnds) {
  EXPECT_EQ(score("exact:answer", "\n Paris ", R"({"answer": "Paris"})"), 1);
  EXPECT_EQ(score("exact:answer", "paris", R"({"answer": "Paris"})"), 0);
  EXPECT_EQ(score("exact:answer", "4 2", R"({"answer": "42"})"), 0);
  EXPECT_EQ(score("exact:answer", "42", R"({"answer": 42})"), 1);
  EXPECT_EQ(score("exact:answer", "true", R"({"answer": true})"), 1);
}

TEST(RewardFunctions, NumberComparesTheLastOneByValue) {
  const std::string gsm8k = R"({"answer": "She makes 9 * 2 = $<<9*2=18>>18.\n#### 1,018"})";
  EXPECT_EQ(score("number:answer", "so it is 1018.", gsm8k), 1);
  EXPECT_EQ(score("number:answer", "so it is $1,018.00", gsm8k), 1);
  EXPECT_EQ(score("number:answer", "1018 minus 3", gsm8k), 0);
  EXPECT_EQ(score("number:answer", "none", gsm8k), 0);
  EXPECT_EQ(score("number:answer", "-0.5", R"({"answer": -0.50})"), 1);
  EXPECT_EQ(score("number:answer", "0.5", R"({"answer": -0.50})"), 0);
}

TEST(RewardFunctions, TheLastNumberOfAText) {
  EXPECT_EQ(last_number("a 1 b 2,345,678 c"), 2345678);
  EXPECT_EQ(last_number("1,2345"), 2345) << "no group of three";
  EXPECT_EQ(last_number("3 - -4"), -4);
  EXPECT_EQ(last_number("10-7"), 7);
  EXPECT_EQ(last_number("(3)-4"), 4);
  EXPECT_EQ(last_number("-$5.50."), -5.5);
  EXPECT_EQ(last_number("x = .25"), 0.25);
  EXPECT_EQ(last_number("2.5e-3 mol"), 0.0025);
  EXPECT_EQ(last_number("3 eggs, 4e"), 4);
  EXPECT_EQ(last_number("7 and 1e999"), 7) << "beyond a double";
  EXPECT_EQ(last_number("no - . , number"), std::nullopt);
}

TEST(RewardFunctions, RegexIsFoundAnywhere) {
  EXPECT_EQ(score("regex:^<think>.*</think>$", "<think>a</think>"), 1);
  EXPECT_EQ(score("regex:^<think>.*</think>$", "<think>a\nb</think>"), 0) << "a dot is not a line break";
  EXPECT_EQ(score("regex:(?s)^<think>.*</think>$", "<think>a\nb</think>"), 1);
  EXPECT_EQ(score("regex:^b", "a\nb"), 0) << "^ is the begin of the text";
  EXPECT_EQ(score("regex:happily", "they lived happily ever after"), 1);
}

TEST(RewardFunctions, RegexThatTakesTooLongScoresZeroAndCounts) {
  const auto made = make_reward_function(parse_reward("regex:^(a+)+$"), Duration{60});
  const std::vector<RewardRow> rows = {{"", std::string(40, 'a') + "b", {}, true, "{}"}, {"", "aaa", {}, true, "{}"}};
  std::vector<double> rewards(2, -1);
  made->score(rows, rewards, [] {});
  EXPECT_EQ(rewards, (std::vector<double>{0, 1}));
  EXPECT_EQ(made->take_unscored(), 1);
  EXPECT_EQ(made->take_unscored(), 0);
}

TEST(RewardFunctions, LengthFallsFromItsLimitOn) {
  EXPECT_EQ(score("length:4", "", "{}", 4), 0);
  EXPECT_EQ(score("length:4", "", "{}", 5), -0.25);
  EXPECT_EQ(score("length:4", "", "{}", 8), -1);
  EXPECT_EQ(score("length:4", "", "{}", 80), -1);
}

TEST(RewardFunctions, IntegersBeyond64BitsAreComparedByTheirDigits) {
  const std::string columns = R"({"answer": 340282366920938463463374607431768211455})";
  EXPECT_EQ(score("exact:answer", "340282366920938463463374607431768211455", columns), 1);
  EXPECT_EQ(score("exact:answer", "340282366920938463463374607431768211456", columns), 0);
}

TEST(RewardFunctions, RowsThatCannotBeScored) {
  const auto refused = [](const std::string& function, const std::string& columns, const std::string& what) {
    try {
      check_reward_columns(parse_reward(function), columns);
      ADD_FAILURE() << "accepted: " << columns;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_content);
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
    }
  };
  refused("exact:answer", R"({"result": "4"})", "no text or number in the column 'answer', only");
  refused("exact:answer", R"({"answer": null})", "'answer'");
  refused("exact:answer", R"({"answer": ["4"]})", "'answer'");
  refused("number:answer", R"({"answer": "four"})", "has no number: 'four'");
  check_reward_columns(parse_reward("number:answer"), R"({"answer": "4"})");
}

TEST(RewardFunctions, NamesOfMetricsAreUnique) {
  RewardFunctionsConfig config;
  config.functions = {"regex:a", "model:folder", "regex:b", "exact:answer"};
  EXPECT_EQ(reward_names(config), (std::vector<std::string>{"regex", "model", "regex_2", "exact"}));
}

}  // namespace
}  // namespace llmtrain
