// The plan is the memory: what a run of GPT-2 124M takes beyond its libraries is what --estimate says.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "decks/program.hpp"

namespace llmtrain::test {
namespace {

struct Layout {
  int ranks, stage;
  const char* recompute;
};

class Memory : public ::testing::TestWithParam<Layout> {};

TEST_P(Memory, OfARunIsTheEstimate) {
  if (std::string(LLMTRAIN_SANITIZED) == "yes") GTEST_SKIP() << "the sanitizers' own memory is not in the estimate";
  const auto [ranks, stage, recompute] = GetParam();
  const TemporaryFolder folder;
  std::vector<std::string> arguments = {(source_folder() / "inputs/medium.ini").string(),
                                        "run.output=" + folder.text(),
                                        "run.name=a",
                                        "run.max_steps=2",
                                        "batch.micro=1",
                                        "batch.global=" + std::to_string(ranks),
                                        "parallel.zero=" + std::to_string(stage),
                                        "memory.recompute=" + std::string(recompute),
                                        "evaluation.at_end=false",
                                        "checkpoint.at_end=false",
                                        "log.every_steps=1",
                                        "log.samples_every_steps=0"};
  const Outcome run = llmtrain({ranks, 1, arguments});
  ASSERT_EQ(run.exit_code, 0) << run.output;
  std::istringstream lines(read_file(folder / "a/metrics.jsonl"));
  std::string line, last;
  while (std::getline(lines, line)) last = line;
  const auto metrics = nlohmann::json::parse(last);
  const double measured = metrics["memory"].get<double>() - metrics["memory_libraries"].get<double>();

  arguments.insert(arguments.end(), {"--estimate", "--json", "--ranks", std::to_string(ranks)});
  const Outcome estimate = llmtrain({1, 1, arguments});
  ASSERT_EQ(estimate.exit_code, 0) << estimate.output;
  const auto j = nlohmann::json::parse(estimate.output.substr(estimate.output.find('{')));
  ASSERT_GT(j["parameters"].get<double>(), 100e6);
  EXPECT_NEAR(measured / j["bytes_per_rank"]["total"].get<double>(), 1.0, 0.05) << last << estimate.output;
}

TEST(MemoryPlan, NothingIsCopiedWhereNothingIsSaved) {
  const TemporaryFolder folder;
  const auto workspace = [&](const char* at_end) {
    const Outcome estimate =
        llmtrain({1,
                  1,
                  {(source_folder() / "inputs/quickstart.ini").string(), "--estimate", "--json",
                   "data.cache=" + folder.text(), "checkpoint.every_steps=0", "checkpoint.every_minutes=0", at_end}});
    EXPECT_EQ(estimate.exit_code, 0) << estimate.output;
    return nlohmann::json::parse(estimate.output.substr(estimate.output.find('{')))["bytes_per_rank"]["workspace"]
        .get<int64_t>();
  };
  EXPECT_EQ(workspace("checkpoint.at_end=false"), 0);
  EXPECT_GT(workspace("checkpoint.at_end=true"), 0);
}

INSTANTIATE_TEST_SUITE_P(RanksAndStages, Memory,
                         ::testing::Values(Layout{1, 1, "none"}, Layout{2, 0, "none"}, Layout{2, 2, "none"},
                                           Layout{2, 3, "none"}, Layout{1, 1, "block"}),
                         [](const auto& test) {
                           return "ranks" + std::to_string(test.param.ranks) + "zero" +
                                  std::to_string(test.param.stage) + test.param.recompute;
                         });

}  // namespace
}  // namespace llmtrain::test
