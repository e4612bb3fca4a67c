// Replays in whole runs: they change no result, and name ranks that compute wrongly.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "decks/run_folder.hpp"

namespace llmtrain::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

const DocumentsDeck deck{6, 2, 8,
                         "[checkpoint]\nevery_steps = 2\n[log]\nparameter_hash_every_steps = 1\nevery_steps = 1\n"};
const std::string replays = "watchdog.replay_every_steps=2", fp32 = "precision.compute=fp32";

class Replays : public RunFolder {
 protected:
  Replays() : RunFolder(text_of_documents(60), deck.text()) {}
  std::string metrics(const std::string& name) const { return read_file(folder / (name + "/metrics.jsonl")); }
};

/// Also while experts have losses, and ranks share matrices, rows or experts.
TEST_F(Replays, ChangeNoByteOfTheLedger) {
  struct Case {
    int ranks;
    std::vector<std::string> keys;
  };
  const std::vector<std::string> experts = {"model.family=mixtral", "model.n_experts=4", "model.experts_per_token=2",
                                            "objective.router_bias_rate=0"};
  const std::vector<std::string> blocks = {"parallel.context_blocks=2", "parallel.tensor_blocks=2", "model.n_heads=4"};
  const std::vector<std::pair<std::vector<std::string>, std::vector<Case>>> groups = {
      {{}, {{1, {}}, {2, {"parallel.zero=0"}}, {3, {"parallel.zero=3"}}}},
      {blocks, {{4, {"parallel.context=2", "parallel.tensor=2"}}}},
      {experts, {{2, {"parallel.expert=2", "parallel.zero=2"}}}}};
  int run = 0;
  for (const auto& [keys, cases] : groups) {
    const std::string plain = "plain" + std::to_string(++run);
    const Outcome expected = start(plain, 1, keys);
    ASSERT_EQ(expected.exit_code, 0) << expected.output;
    EXPECT_THAT(metrics(plain), Not(HasSubstr("replay/")));
    for (const Case& one : cases) {
      std::vector<std::string> all = keys;
      all.insert(all.end(), one.keys.begin(), one.keys.end());
      all.push_back(replays);
      const std::string name = "run" + std::to_string(++run);
      const Outcome outcome = start(name, one.ranks, all);
      EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
      EXPECT_EQ(ledger(name), ledger(plain)) << name << " of " << one.ranks;
      EXPECT_THAT(metrics(name), HasSubstr("\"replay/count\":3.0")) << "after 2, 4 and 5 steps";
    }
  }
}

/// A copy of a weight that is wrong on one of two ranks: the run stops and names both, and nothing is excluded.
TEST_F(Replays, TwoRanksStopTheRun) {
  const Outcome outcome = start("two", 2, {replays, fp32, "parallel.zero=0"}, "bitonce weights 3 1 7");
  EXPECT_EQ(outcome.exit_code, 65) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("step 5: ranks 0, 1 on "));
  EXPECT_THAT(outcome.output, HasSubstr("the same command resumes from step 2"));
  EXPECT_FALSE(fs::exists(folder / "two/excluded_nodes"));
  EXPECT_TRUE(fs::exists(folder / "two/suspect_checkpoints" / step_name(4)));
  EXPECT_THAT(metrics("two"), HasSubstr("replay/doubtful_node"));
  const Outcome verified = llmtool({"verify", (folder / "two/suspect_checkpoints" / step_name(4)).string()});
  EXPECT_THAT(verified.output, HasSubstr("intact, step 4"));
  EXPECT_THAT(verified.output, HasSubstr(": suspect: "));
  const Outcome again = start("two", 2, {replays, fp32});
  ASSERT_EQ(again.exit_code, 0) << again.output;
  EXPECT_THAT(again.output, HasSubstr("may compute wrongly"));
  ASSERT_EQ(start("plain", 1, {fp32}).exit_code, 0);
  EXPECT_EQ(ledger("two"), ledger("plain"));
  // A control: without replays nothing is noticed, and the results are others.
  ASSERT_EQ(start("unnoticed", 2, {fp32, "parallel.zero=0"}, "bitonce weights 3 1 7").exit_code, 0);
  EXPECT_NE(ledger("unnoticed"), ledger("plain"));
}

/// A gradient that is wrong once, in a rank that has only itself to compare with.
TEST_F(Replays, OneRankFindsWhatItDoesNotRepeat) {
  const std::vector<std::string> keys = {replays, "parallel.reduction_groups=1"};
  const Outcome outcome = start("one", 1, keys, "bitonce gradient 4 0 7");
  EXPECT_EQ(outcome.exit_code, 76) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("step 5: the gradients of rank 0 on "));
  EXPECT_TRUE(fs::exists(folder / "one/excluded_nodes"));
  ASSERT_EQ(start("one", 1, keys).exit_code, 0);
  ASSERT_EQ(start("plain", 1, {"parallel.reduction_groups=1"}).exit_code, 0);
  EXPECT_EQ(ledger("one"), ledger("plain"));
}

}  // namespace
}  // namespace llmtrain::test
