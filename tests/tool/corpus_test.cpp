#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "text/stories.hpp"
#include "tool/tool.hpp"

namespace llmtrain {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

struct Outcome {
  int code;
  std::string out, err;
};

Outcome llmtool(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "llmtool");
  std::vector<const char*> argv;
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int code = run_tool(static_cast<int>(argv.size()), argv.data());
  return {code, testing::internal::GetCapturedStdout(), testing::internal::GetCapturedStderr()};
}

class Corpus : public testing::Test {
 protected:
  Corpus() { std::filesystem::create_directories(folder_); }
  ~Corpus() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static std::string read(const std::string& name) {
    std::ostringstream text;
    text << std::ifstream(name, std::ios::binary).rdbuf();
    return text.str();
  }
  size_t files() const { return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_), {})); }

 private:
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("llmtrain_corpus_test_" + std::to_string(getpid()));
};

TEST_F(Corpus, IsWrittenWithItsEntropy) {
  const Outcome outcome =
      llmtool({"corpus", "stories", "--bytes", "20K", "--seed", "7", "--output", path("stories.txt")});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err, IsEmpty());
  EXPECT_EQ(read(path("stories.txt")), stories_text(7, 20'000));
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
  EXPECT_EQ(read(file), "precious");
  EXPECT_EQ(llmtool({"corpus", "stories", "--bytes", "3K", "--output", file, "--force"}).code, 0);
  EXPECT_EQ(read(file), stories_text(1, 3000));
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
  expect_refused({}, "Usage");
  expect_refused({"corpsu", "stories"}, "did you mean corpus?");
  expect_refused({"corpus", "storys", "--output", file}, "did you mean stories?");
  expect_refused({"corpus", "stories", "--ouptut", file}, "did you mean --output?");
  expect_refused({"corpus", "stories", "--sed=3", "--output", file}, "did you mean --seed?");
  expect_refused({"--halp"}, "no such option --halp");
  expect_refused({"corpus", "stories"}, "--output is required");
  expect_refused({"corpus", "--output", file}, "name is required");
  expect_refused({"corpus", "stories", "more", "--output", file}, "'more' is not understood");
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
