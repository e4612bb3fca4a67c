#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "corpus/stories.hpp"
#include "tool/tool_program.hpp"

namespace llmtrain {
namespace {

using test::llmtool;
using test::Outcome;
using testing::HasSubstr;
using testing::IsEmpty;

class Corpus : public test::ToolTest {};

TEST_F(Corpus, IsWrittenWithItsEntropy) {
  const Outcome outcome =
      llmtool({"corpus", "stories", "--bytes", "20K", "--seed", "7", "--output", path("stories.txt")});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err, IsEmpty());
  EXPECT_EQ(content("stories.txt"), stories_text(7, 20'000));
  EXPECT_EQ(files(), 1u);

  double per_character = 0, per_story = 0;
  ASSERT_EQ(std::sscanf(outcome.out.c_str(), "entropy: %lf nats per character, %lf nats per story", &per_character,
                        &per_story),
            2);
  EXPECT_NEAR(per_character, stories_optimum().nats_per_character, 1e-6);
  EXPECT_NEAR(per_story, stories_optimum().nats_per_story, 1e-6);
}

TEST_F(Corpus, GoesToTheStandardOutputAlone) {
  const Outcome outcome = llmtool({"corpus", "stories", "--bytes", "3KiB", "--output", "-"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, stories_text(1, 3072));
  EXPECT_THAT(outcome.err, HasSubstr("nats per character"));
}

TEST_F(Corpus, OverwritesOnlyWhenForced) {
  const std::string file = path("stories.txt");
  std::ofstream(file) << "precious";
  const Outcome refused = llmtool({"corpus", "stories", "--bytes", "3K", "--output", file});
  EXPECT_EQ(refused.code, 73);
  EXPECT_THAT(refused.err, HasSubstr("--force"));
  EXPECT_EQ(test::read_file(file), "precious");
  EXPECT_EQ(llmtool({"corpus", "stories", "--bytes", "3K", "--output", file, "--force"}).code, 0);
  EXPECT_EQ(test::read_file(file), stories_text(1, 3000));
}

TEST_F(Corpus, ReportsWhereItCannotWrite) {
  EXPECT_EQ(llmtool({"corpus", "stories", "--output", path("none/stories.txt")}).code, 73);
  EXPECT_EQ(llmtool({"corpus", "stories", "--output", path("")}).code, 73);
  const Outcome full = llmtool({"corpus", "stories", "--bytes", "1M", "--output", "/dev/full"});
  EXPECT_EQ(full.code, 74);
  EXPECT_THAT(full.err, HasSubstr("/dev/full"));
}

TEST_F(Corpus, KnowsItsCommandLine) {
  const auto expect_refused = [](const std::vector<std::string>& arguments, const std::string& reason) {
    const Outcome outcome = llmtool(arguments);
    EXPECT_EQ(outcome.code, 64);
    EXPECT_THAT(outcome.out, IsEmpty());
    EXPECT_THAT(outcome.err, HasSubstr(reason));
  };
  const std::string file = path("stories.txt");
  expect_refused({}, "[OPTIONS]");
  expect_refused({"corpsu", "stories"}, "did you mean corpus?");
  expect_refused({"corpus", "storys", "--output", file}, "did you mean stories?");
  expect_refused({"corpus", "stories", "--ouptut", file}, "did you mean --output?");
  expect_refused({"corpus", "stories", "--sed=3", "--output", file}, "did you mean --seed?");
  expect_refused({"--halp"}, "no such option --halp");
  expect_refused({"corpus", "stories"}, "--output is required");
  expect_refused({"corpus", "--output", file}, "name is required");
  expect_refused({"corpus", "stories", "more", "--output", file}, "unexpected argument 'more'");
  expect_refused({"corpus", "stories", "--output", file, "--bytes", "8X"}, "--bytes: '8X'");
  expect_refused({"corpus", "stories", "--output", file, "--bytes", "100"}, "out of range");
  expect_refused({"corpus", "stories", "--output", file, "--seed", "-1"}, "out of range");
  EXPECT_EQ(files(), 0u);
}

TEST_F(Corpus, Helps) {
  for (const std::string& flag : {std::string("-h"), std::string("--help")}) {
    EXPECT_THAT(llmtool({flag}).out, HasSubstr("corpus"));
    const Outcome help = llmtool({"corpus", flag});
    EXPECT_EQ(help.code, 0);
    EXPECT_THAT(help.out, HasSubstr("--bytes"));
  }
  EXPECT_THAT(llmtool({"--version"}).out, HasSubstr("llmtool "));
}

}  // namespace
}  // namespace llmtrain
