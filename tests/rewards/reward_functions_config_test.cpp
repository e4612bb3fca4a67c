// [rewards]: which functions a deck may name, how their arguments are written, and what is refused with the deck's
// line.
#include "rewards/reward_functions_config.hpp"

#include <gtest/gtest.h>

#include "core/deck/deck.hpp"
#include "core/error.hpp"

namespace llmtrain {
namespace {

RewardFunctionsConfig load(const std::string& lines) {
  RewardFunctionsConfig config;
  DeckKeys keys;
  config.visit(keys);
  DeckLoader deck(keys, "deck.ini");
  deck.load("[rewards]\n" + lines, {}, {});
  config.resolve(deck);
  deck.finish();
  return config;
}

TEST(RewardFunctionsConfig, FunctionsAndTheirArguments) {
  const RewardFunctionsConfig config = load(
      "functions = exact:answer, number:result, length:1K, regex:^a{1\\,3}\\\\s;x$, command:./score.py --mode a\\,b,\n"
      "  model:models/reward\n"
      "weights = 1, 0.5, 2, -1, 0, 3\n");
  const std::vector<RewardSpec> specs = config.specs();
  ASSERT_EQ(specs.size(), 6u);
  EXPECT_EQ(specs[0].kind, RewardSpec::Kind::exact);
  EXPECT_EQ(specs[0].column(), "answer");
  EXPECT_EQ(specs[1].column(), "result");
  EXPECT_EQ(specs[2].length(), 1000);
  EXPECT_EQ(specs[3].argument, "^a{1,3}\\s;x$");
  EXPECT_EQ(specs[3].column(), "");
  EXPECT_EQ(specs[4].argument, "./score.py --mode a,b");
  EXPECT_EQ(specs[5].kind, RewardSpec::Kind::model);
  EXPECT_EQ(config.weight(3), -1);
  EXPECT_EQ(load("functions = exact:answer\n").weight(0), 1);
  EXPECT_TRUE(load("").specs().empty()) << "ppo may have a reward model of its own";
}

TEST(RewardFunctionsConfig, MistakesNameTheLine) {
  const auto refused = [](const std::string& lines, const std::string& what) {
    try {
      load(lines);
      ADD_FAILURE() << "accepted: " << lines;
    } catch (const UserError& error) {
      const std::string message = error.what();
      EXPECT_EQ(error.code(), ExitCode::deck) << message;
      EXPECT_NE(message.find("deck.ini:2: "), std::string::npos) << message;
      EXPECT_NE(message.find(what), std::string::npos) << message;
    }
  };
  refused("functions = exacte:answer\n", "did you mean exact?");
  refused("functions = exact\n", "'exact' is not a reward function");
  refused("functions = exact:\n", "needs a value after the colon");
  refused("functions = length:0\n", "out of range");
  refused("functions = length:many\n", "not a whole number");
  refused("functions = regex:(a\n", "missing closing parenthesis");
  refused("functions = regex:a{1,3}\n", "write a comma that belongs to one as \\,");
  refused("functions = exact:a, exact:a\n", "'exact:a' is listed twice");
  refused("weights = 1, 2\nfunctions = exact:a\n", "2 weights for 1 functions");
  refused("time_limit = 0s\nfunctions = exact:a\n", "longer than 0 s");
}

}  // namespace
}  // namespace llmtrain
