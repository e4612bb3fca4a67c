// Decks of ppo and grpo: keys of [rollout], [rewards] and of [data] for prompts.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "methods/method.hpp"
#include "train/config/load_config.hpp"

namespace llmtrain {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Config load_deck(const std::string& task, const std::vector<std::string>& arguments, bool rollout = true) {
  return load_config("[run]\nmax_steps = 10\ntask = " + task +
                         "\n[model]\nd_model = 64\nn_layers = 2\nn_heads = 4\n[data]\ntrain = rows.jsonl\n[batch]\n"
                         "sequence_length = 64\nglobal = 8\n" +
                         (task == "ppo" ? "[ppo]\nvalue_model = critic\n" : "") +
                         (rollout ? "[rewards]\nfunctions = exact:answer\n[rollout]\nmax_new_tokens = 16\n" : ""),
                     "tiny.ini", arguments, DeckFiles::recorded);
}

std::string errors_with(const std::string& task, const std::vector<std::string>& arguments, bool rollout = true) {
  try {
    load_deck(task, arguments, rollout);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::deck);
    return error.what();
  }
  return "no error";
}

TEST(RolloutDeck, TasksSetTheDefaults) {
  for (const char* task : {"ppo", "grpo"}) {
    const Config config = load_deck(task, {"lora.dropout=0.1", "run.finetuning=lora"});
    EXPECT_EQ(sample_rules(config).text_format().row_format, "prompt");
    EXPECT_EQ(config.data.overflow, DataConfig::Overflow::truncate_left);
    EXPECT_EQ(config.data.packing, DataConfig::Packing::none);
    EXPECT_EQ(sample_rules(config).room(64), 64 - 16);
    EXPECT_EQ(config.rollout.temperature, 0.7);
    EXPECT_EQ(config.rollout.top_k, 0);
    EXPECT_EQ(config.rollout.top_p, 1);
    EXPECT_TRUE(config.rollout.stop.empty());
    EXPECT_EQ(config.lora.dropout, 0) << "log-probabilities are compared";
  }
  EXPECT_THAT(load_deck("grpo", {"rollout.stop=\\nQ:, <end>"}).rollout.stop, testing::ElementsAre("\nQ:", "<end>"));
  EXPECT_EQ(sample_rules(load_deck("sft", {}, false)).text_format().row_format, "auto") << "the control";
}

TEST(RolloutDeck, TheResolvedDeckIsADeck) {
  const Config config = load_deck(
      "grpo", {"rewards.functions=regex:^a{1\\,3}\\\\s;$, command:./score.py --mode \\x23", "rewards.weights=1, 0.5"});
  const std::string resolved = write_deck(config);
  const Config again = load_config(resolved, "resolved.ini", {}, DeckFiles::recorded);
  EXPECT_EQ(again.rewards.functions, config.rewards.functions);
  EXPECT_EQ(again.rewards.functions.at(0), "regex:^a{1,3}\\s;$");
  EXPECT_EQ(again.rewards.functions.at(1), "command:./score.py --mode #");
}

TEST(RolloutDeck, KeysAreRefusedWhereTheyHaveNoUse) {
  EXPECT_THAT(errors_with("grpo", {"rollout.max_new_tokens=64"}), HasSubstr("64 tokens leave no room for a prompt"));
  EXPECT_THAT(errors_with("grpo", {"rollout.temperature=0"}), HasSubstr("must be > 0"));
  EXPECT_THAT(errors_with("grpo", {"rollout.top_p=0"}), HasSubstr("out of range"));
  EXPECT_THAT(errors_with("grpo", {"data.overflow=truncate"}), HasSubstr("would cut off the end of a prompt"));
  EXPECT_THAT(errors_with("grpo", {"data.overflow=split"}), HasSubstr("truncate_left"));
  EXPECT_THAT(errors_with("grpo", {"data.packing=wrap"}), HasSubstr("data.packing"));
  EXPECT_THAT(errors_with("grpo", {"data.train=builtin:stories"}), HasSubstr("run.task = grpo trains on prompts"));
  EXPECT_THAT(errors_with("grpo", {"data.format=alpaca"}), HasSubstr("they are not prompts"));
  EXPECT_THAT(errors_with("sft", {"data.format=prompt"}, false), HasSubstr("which run.task = ppo and grpo are for"));
  EXPECT_THAT(errors_with("grpo", {}, false), HasSubstr("needs at least one function"));
  EXPECT_THAT(errors_with("sft", {}), AllOf(HasSubstr("rewards.functions: run.task = sft does not use it"),
                                            HasSubstr("it is a key of ppo, grpo")));
}

}  // namespace
}  // namespace llmtrain
