#include "tasks/command_line.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.hpp"

namespace llmtrain {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

CommandLine parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "llmtrain");
  return parse_command_line(static_cast<int>(arguments.size()), arguments.data());
}

std::string error_of(const std::vector<const char*>& arguments) {
  try {
    parse(arguments);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::command_line);
    return error.what();
  }
  return "no error";
}

TEST(CommandLine, TakesADeckAndOverrides) {
  const CommandLine line = parse({"inputs/a.ini", "run.seed=1", "data.train=a,b c,[d]", "log.sample_prompts="});
  EXPECT_EQ(line.deck, "inputs/a.ini");
  EXPECT_THAT(line.overrides, ElementsAre("run.seed=1", "data.train=a,b c,[d]", "log.sample_prompts="));
  EXPECT_FALSE(line.help || line.version || line.check || line.estimate || line.json);
}

TEST(CommandLine, OptionsMayStandAnywhere) {
  const CommandLine check = parse({"--check", "a.ini", "run.seed=1"});
  EXPECT_TRUE(check.check);
  EXPECT_EQ(check.deck, "a.ini");
  const CommandLine estimate =
      parse({"a.ini", "--estimate", "--ranks", "4096", "run.seed=-1", "--ranks-per-node=8", "--json"});
  EXPECT_TRUE(estimate.estimate && estimate.json);
  EXPECT_EQ(estimate.ranks, 4096);
  EXPECT_EQ(estimate.ranks_per_node, 8);
  EXPECT_THAT(estimate.overrides, ElementsAre("run.seed=-1"));
}

TEST(CommandLine, HelpTakesATopic) {
  EXPECT_TRUE(parse({"--help"}).help);
  EXPECT_EQ(parse({"--help"}).help_topic, "");
  EXPECT_EQ(parse({"-h", "model.d_model"}).help_topic, "model.d_model");
  EXPECT_EQ(parse({"--help=model"}).help_topic, "model");
  EXPECT_TRUE(parse({"a.ini", "--help"}).help);
  EXPECT_TRUE(parse({"--version"}).version);
  EXPECT_THAT(usage_text(), HasSubstr("--ranks-per-node"));
}

TEST(CommandLine, RefusesWithTheNearestOption) {
  EXPECT_THAT(error_of({"a.ini", "--chekc"}), HasSubstr("no such option --chekc (did you mean --check?)"));
  EXPECT_THAT(error_of({"a.ini", "--estimates=3"}), HasSubstr("did you mean --estimate?"));
  EXPECT_THAT(error_of({"a.ini", "-x"}), HasSubstr("no such option -x"));
  EXPECT_THAT(error_of({}), HasSubstr("no deck is named"));
  EXPECT_THAT(error_of({"run.seed=1"}), HasSubstr("give the deck before"));
  EXPECT_THAT(error_of({"a.ini", "--estimate", "--ranks", "x"}), HasSubstr("--ranks"));
  EXPECT_THAT(error_of({"a.ini", "--estimate", "--ranks", "0"}), HasSubstr("--ranks"));
  EXPECT_THAT(error_of({"a.ini", "--estimate", "--ranks"}), HasSubstr("--ranks"));
  EXPECT_THAT(error_of({"a.ini", "--ranks", "4"}), HasSubstr("needs --estimate"));
  EXPECT_THAT(error_of({"a.ini", "--json"}), HasSubstr("needs --estimate"));
  EXPECT_THAT(error_of({"a.ini", "--measure"}), HasSubstr("needs --estimate"));
  EXPECT_THAT(error_of({"a.ini", "--estimate", "--measure", "--ranks", "4"}), HasSubstr("times this job"));
  EXPECT_THAT(error_of({"a.ini", "--check", "--estimate"}), HasSubstr("exclude each other"));
  EXPECT_EQ(error_of({"a.ini", "not.looked.into"}), "no error");  // the deck reader checks it
}

}  // namespace
}  // namespace llmtrain
