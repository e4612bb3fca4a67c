// run.task = grpo and ppo: rollouts are on policy to the last bit, and the ledger depends neither on the layout nor on
// where a run is resumed.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
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
using ::testing::Not;

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

// Tokens that are drawn with few keys have another distribution, which the metric measures; with room for all it is the
// policy's.
TEST_P(Reinforcement, SamplesWithPartOfTheCache) {
  const auto mismatch = [&](const std::string& name, std::vector<std::string> keys) {
    return metric(ledger(name, std::move(keys)), "rollout/mismatch")[0];
  };
  EXPECT_EQ(mismatch("room", {"rollout.cache=window", "rollout.window=64"}), 0);
  EXPECT_GT(mismatch("few", {"rollout.cache=h2o", "rollout.h2o_heavy=2", "rollout.h2o_recent=2"}), 0);
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

class RewardPrograms : public Reinforcement {
 protected:
  /// Options of a deck whose rewards come from a shell script.
  std::vector<std::string> with_program(const std::string& script, const std::string& name) {
    const std::string path = (folder / name).string();
    write_file(path, "#!/bin/sh\n" + script);
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return {"rewards.functions=command:" + path};
  }
};

// The program of the first job waits forever; the job is asked to stop, and the next one finishes.
TEST_P(RewardPrograms, AreLeftWhenTheJobIsAskedToStop) {
  const std::string answer = "while read -r line; do echo ${#line}; done\n";
  const std::string waits = "read -r line; kill -USR1 $(cat " + (folder / "job").string() + "); sleep 600\n";
  const std::vector<std::string> keys = with_program(answer, "score.sh");
  const std::string expected = ledger("whole", keys);
  with_program(waits, "score.sh");
  run("grpo", "deck", {"--check"});  // writes the deck
  const std::string command =
      fmt::format("sh -c 'echo $$ > {0}/job; exec {1} {0}/grpo.ini run.name=part {2} rewards.time_limit=10m'",
                  folder.text(), programs::llmtrain, keys.front());
  const auto begin = std::chrono::steady_clock::now();
  const Outcome outcome = shell("OMP_NUM_THREADS=1 " + command);
  EXPECT_EQ(outcome.exit_code, 75) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("stopped by SIGUSR1"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(120));
  with_program(answer, "score.sh");
  EXPECT_EQ(ledger("part", keys), expected);
}

TEST_P(RewardPrograms, AreTriedByChecks) {
  const auto checked = [&](std::vector<std::string> keys) {
    keys.emplace_back("--check");
    return run("grpo", "checked", keys);
  };
  const Outcome sound = checked(with_program("while read -r line; do echo 1; done\n", "sound.sh"));
  EXPECT_EQ(sound.exit_code, 0) << sound.output;
  const Outcome broken = checked(with_program("read -r line; echo rubbish\n", "broken.sh"));
  EXPECT_THAT(broken.output, HasSubstr("wrote 'rubbish'"));
  EXPECT_NE(broken.exit_code, 0);
  const Outcome column = checked({"rewards.functions=exact:chosen"});
  EXPECT_EQ(column.exit_code, 0) << column.output;
  const std::string rows = (folder / "rows.jsonl").string();
  write_file(rows, "{\"prompt\": \"a\", \"answer\": 1}\n\n{\"prompt\": \"b\", \"answer\": \"none\"}\n");
  const Outcome missing = checked({"rewards.functions=number:answer", "data.train=" + rows});
  EXPECT_THAT(missing.output, HasSubstr(rows + ":3: rewards.functions: the column 'answer' of a row has no number"));
  EXPECT_NE(missing.exit_code, 0);
}

// Completions without a reward are left out, on every layout and after a resume, and counted.
TEST_P(RewardPrograms, MayLeaveCompletionsOut) {
  const std::string task = GetParam();
  const auto program = [&](const std::string& otherwise) {
    return with_program(
        "while read -r line; do case ${#line} in *[02468]) echo " + otherwise + " ;; *) echo ${#line} ;; esac; done\n",
        otherwise + ".sh");
  };
  std::vector<std::string> keys = program("null");
  keys.push_back(task + ".epochs=2");
  const std::string expected = ledger("one", keys);
  double left_out = 0;
  for (const double count : metric(expected, "rewards/unscorable")) left_out += count;
  EXPECT_GT(left_out, 0);
  EXPECT_LT(left_out, 4 * 8);
  keys.emplace_back("parallel.zero=3");
  EXPECT_EQ(ledger("ranks", keys, 3), expected);
  keys.emplace_back("checkpoint.at_end=true");
  keys.emplace_back("run.max_steps=3");
  ledger("part", keys);
  keys.back() = "run.max_steps=4";
  EXPECT_EQ(ledger("part", keys, 2), expected);
  std::vector<std::string> zero = program("0");
  zero.push_back(task + ".epochs=2");
  EXPECT_NE(ledger("zero", zero), expected) << "the control: as rewards of 0";
  const Outcome none = run(task, "none", with_program("while read -r line; do echo NaN; done\n", "none.sh"));
  EXPECT_EQ(none.exit_code, 0) << none.output;
  EXPECT_THAT(none.output, HasSubstr("8 of 8 completions have no reward and are left out"));
}

INSTANTIATE_TEST_SUITE_P(Tasks, RewardPrograms, testing::Values("grpo"));

class CriticOnTheTrunk : public Reinforcement {};

// As LedgerIsIdenticalForLayouts and ResumesWithinAnIterationOnOtherRanks.
TEST_P(CriticOnTheTrunk, LedgersAreIdentical) {
  const auto with = [](std::vector<std::string> more) {
    more.insert(more.end(), {"ppo.value_model=policy", "ppo.epochs=2"});
    return more;
  };
  const std::string expected = ledger("one", with({}));
  EXPECT_EQ(ledger("shards", with({"parallel.zero=3", "memory.recompute=block"}), 3), expected);
  ledger("part", with({"run.max_steps=3", "checkpoint.at_end=true"}));
  EXPECT_EQ(ledger("part", with({"parallel.zero=2"}), 2), expected);
  EXPECT_NE(ledger("apart", {"ppo.epochs=2"}), expected) << "the control: a critic of its own";
  const std::vector<double> mismatch = metric(expected, "rollout/mismatch"),
                            loss = metric(expected, "losses/value_avg");
  EXPECT_EQ(mismatch[0], 0);
  EXPECT_GT(mismatch[1], 0) << "the control";
  EXPECT_LT(loss[1], loss[0]) << "the same completions";
  const std::string adapted = ledger("lora", with({"run.finetuning=lora", "lora.r=4"}));
  EXPECT_EQ(ledger("lora2", with({"run.finetuning=lora", "lora.r=4", "parallel.zero=3"}), 2), adapted);
}

INSTANTIATE_TEST_SUITE_P(Tasks, CriticOnTheTrunk, testing::Values("ppo"));

using Diverging = Reinforcement;

// Step 1 makes weights so large that the logits of the next rollout are not finite.
TEST_P(Diverging, RolloutsRollBackAsLossesDo) {
  const Outcome outcome = run("grpo", "lost",
                              {"schedule.learning_rate=1e20", "optimizer.max_grad_norm=0", "checkpoint.every_steps=1",
                               "divergence.max_rollbacks=1"});
  EXPECT_EQ(outcome.exit_code, 79) << outcome.output;
  EXPECT_THAT(outcome.output,
              HasSubstr("the logits of sampling are not finite; returning to the checkpoint of step 1"));
  const Outcome control = run("grpo", "sound", {"checkpoint.every_steps=1"});
  EXPECT_THAT(control.output, Not(HasSubstr("not finite"))) << "the control";
}

INSTANTIATE_TEST_SUITE_P(Tasks, Diverging, testing::Values("grpo"));

using Measured = Reinforcement;

TEST_P(Measured, WholeIterationsAreTimed) {
  const Outcome outcome = run(GetParam(), "timed", {"--estimate", "--measure", "--json", GetParam() + ".epochs=2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const json j = json::parse(outcome.output.substr(outcome.output.find('{')));
  EXPECT_GT(j["seconds_per_step"].get<double>(), 0);
  EXPECT_EQ(j["measured_steps"].get<int>() % 2, 0);
  EXPECT_EQ(j["steps"], 4);
}

INSTANTIATE_TEST_SUITE_P(Tasks, Measured, testing::Values("grpo", "ppo"), [](const auto& one) { return one.param; });

using ReinforcementErrors = Reinforcement;

TEST_P(ReinforcementErrors, NameWhatCannotBeMeant) {
  const auto message = [&](const std::string& task, const std::vector<std::string>& overrides) {
    const Outcome outcome = run(task, "refused", overrides);
    EXPECT_NE(outcome.exit_code, 0) << outcome.output;
    return outcome.output;
  };
  EXPECT_THAT(message("grpo", {"grpo.group_size=1"}), HasSubstr("group_size"));
  EXPECT_THAT(message("grpo", {"grpo.group_size=3"}), HasSubstr("group size 3"));
  EXPECT_THAT(message("grpo", {"rewards.functions=exact:missing"}), HasSubstr("missing"));
  EXPECT_THAT(message("grpo", {"rewards.functions=command:/bin/cat"}), HasSubstr("/bin/cat"));
  EXPECT_THAT(message("ppo", {"ppo.reward_model=" + file("sft/model")}), HasSubstr("is not a reward model"));
  EXPECT_THAT(message("ppo", {"data.validation_fraction=0.5"}), HasSubstr("validation_fraction"));
}

INSTANTIATE_TEST_SUITE_P(Any, ReinforcementErrors, testing::Values("errors"));

}  // namespace
}  // namespace llmtrain::test
