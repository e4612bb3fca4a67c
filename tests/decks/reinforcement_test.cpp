// run.task = grpo and ppo: rollouts are on policy to the last bit, and the ledger depends neither on the layout nor on
// where a run is resumed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "decks/program.hpp"
#include "harness/temporary_folder.hpp"

namespace llmtrain::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class Reinforcement : public testing::TestWithParam<std::string> {
 protected:
  static std::string file(const std::string& name) { return (source_folder() / "tests/reference" / name).string(); }

  Outcome run(const std::string& task, const std::string& name, const std::vector<std::string>& overrides,
              int ranks = 1, int threads = 1) {
    const std::string deck = (folder / (task + ".ini")).string();
    const std::string method = task == "ppo"
                                   ? "[ppo]\nreward_model = " + file("preference/reward_model") + "\nepochs = 1\n"
                                   : "[grpo]\ngroup_size = 4\n[rewards]\nfunctions = regex:s\n";
    write_file(deck,
               "[run]\ntask = " + task + "\nmax_steps = 4\noutput = " + folder.text() +
                   "\n[model]\npath = " + file("sft/model") + "\n[data]\ntrain = " + file("preference/texts.jsonl") +
                   "\n[rollout]\nmax_new_tokens = 9\n" + method +
                   "[batch]\nsequence_length = 64\nmicro = 2\nglobal = 8\n[optimizer]\nweight_decay = 0\n"
                   "[schedule]\nlearning_rate = 1e-3\n[precision]\ncompute = fp32\n[checkpoint]\nat_end = false\n");
    std::vector<std::string> arguments = {deck, "run.name=" + name};
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    return llmtrain({ranks, threads, arguments});
  }

  std::string ledger(const std::string& name, const std::vector<std::string>& overrides, int ranks = 1,
                     int threads = 1) {
    const Outcome outcome = run(GetParam(), name, overrides, ranks, threads);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return read_file(folder / name / "ledger.jsonl");
  }

  TemporaryFolder folder;
};

double hex(const json& text) { return std::strtod(text.get<std::string>().c_str(), nullptr); }

std::vector<double> metric(const std::string& ledger, const std::string& name) {
  std::vector<double> values;
  std::istringstream lines(ledger);
  for (std::string line; std::getline(lines, line);) values.push_back(hex(json::parse(line)["metrics"][name]));
  return values;
}

// The recorded log-probabilities are those of the update's pass: with tokens left out by top-k and top-p, with bf16,
// with adapters. The second epoch, whose policy is another one, is the control.
TEST_P(Reinforcement, IsOnPolicyToTheLastBit) {
  const std::string epochs = GetParam() + ".epochs=2";
  const std::map<std::string, std::vector<std::string>> cases = {
      {"plain", {}},
      {"filtered", {"rollout.top_k=20", "rollout.top_p=0.9"}},
      {"bf16", {"precision.compute=bf16"}},
      {"lora", {"run.finetuning=lora", "lora.r=4"}}};
  for (const auto& [name, overrides] : cases) {
    SCOPED_TRACE(name);
    std::vector<std::string> keys = {epochs};
    keys.insert(keys.end(), overrides.begin(), overrides.end());
    const std::vector<double> mismatch = metric(ledger(name, keys), "rollout/mismatch");
    ASSERT_EQ(mismatch.size(), 4u);
    EXPECT_EQ(mismatch[0], 0);
    EXPECT_GT(mismatch[1], 0) << "the control";
    EXPECT_EQ(mismatch[2], 0);
  }
}

TEST_P(Reinforcement, LedgerIsIdenticalForLayouts) {
  const std::string expected = ledger("one", {});
  EXPECT_EQ(ledger("ranks", {"parallel.zero=2"}, 2), expected);
  EXPECT_EQ(ledger("shards", {"parallel.zero=3", "memory.recompute=block"}, 3), expected);
  EXPECT_EQ(ledger("threads", {}, 1, 2), expected);
  EXPECT_NE(ledger("seed", {"run.seed=43"}), expected) << "the control";
}

// Steps 2 and 3 learn from the rollout of step 1, which the checkpoint stores.
TEST_P(Reinforcement, ResumesWithinAnIterationOnOtherRanks) {
  const std::vector<std::string> epochs = {GetParam() + ".epochs=2", GetParam() + ".mini_batches=2"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), epochs.begin(), epochs.end());
    return more;
  };
  const std::string expected = ledger("whole", with({"run.max_steps=6"}));
  ledger("part", with({"run.max_steps=3", "checkpoint.at_end=true"}));
  EXPECT_EQ(ledger("part", with({"run.max_steps=6", "parallel.zero=3"}), 2), expected);
}

INSTANTIATE_TEST_SUITE_P(Tasks, Reinforcement, testing::Values("grpo", "ppo"),
                         [](const auto& one) { return one.param; });

using ReinforcementErrors = Reinforcement;

TEST_P(ReinforcementErrors, NameWhatCannotBeMeant) {
  const auto message = [&](const std::string& task, const std::vector<std::string>& overrides) {
    const Outcome outcome = run(task, "refused", overrides);
    EXPECT_NE(outcome.exit_code, 0) << outcome.output;
    return outcome.output;
  };
  EXPECT_THAT(message("grpo", {"grpo.group_size=1"}), HasSubstr("group_size"));
  EXPECT_THAT(message("grpo", {"grpo.group_size=3"}), HasSubstr("groups of 3"));
  EXPECT_THAT(message("grpo", {"rewards.functions=exact:missing"}), HasSubstr("missing"));
  EXPECT_THAT(message("grpo", {"rewards.functions=command:/bin/cat"}), HasSubstr("/bin/cat"));
  EXPECT_THAT(message("ppo", {"ppo.reward_model=" + file("sft/model")}), HasSubstr("is not a reward model"));
  EXPECT_THAT(message("ppo", {"data.validation_fraction=0.5"}), HasSubstr("validation_fraction"));
}

INSTANTIATE_TEST_SUITE_P(Any, ReinforcementErrors, testing::Values("errors"));

}  // namespace
}  // namespace llmtrain::test
