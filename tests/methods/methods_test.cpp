// The list of tasks and the rules in src/methods say the same.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "methods/method.hpp"
#include "train/config/load_config.hpp"

namespace llmtrain {
namespace {

TEST(Methods, EachTaskHasRulesOfItsOwn) {
  for (size_t t = 0; t < enum_names<Task>.size(); ++t) {
    const Task task = static_cast<Task>(t);
    const TaskRules& rules = task_rules(task);
    EXPECT_EQ(rules.task(), task) << name_of(task);
    EXPECT_EQ(rules.trains(), training_tasks.contains(task)) << name_of(task);
    EXPECT_EQ(dynamic_cast<const Method*>(&rules) != nullptr, rules.trains()) << name_of(task);
    EXPECT_EQ(rules.has_dropout(), !(preference_tasks | reinforcement_tasks).contains(task)) << name_of(task);
  }
}

TEST(Methods, SampleRulesAreTheKeysAndWhatTheTaskAdds) {
  const auto rules_of = [](const std::string& task, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"run.task=" + task,     "run.max_steps=1",         "model.d_model=8",
                                          "model.n_layers=1",     "model.n_heads=1",         "data.train=rows.jsonl",
                                          "data.tokenizer=bytes", "batch.sequence_length=64"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return sample_rules(load_config("", "tiny.ini", arguments, DeckFiles::recorded));
  };
  const SampleRules dpo = rules_of("dpo", {"dpo.max_prompt_length=7"});
  EXPECT_EQ(dpo.use, DataUse::preferences);
  EXPECT_EQ(dpo.max_prompt_length, 7);
  EXPECT_EQ(dpo.targets_behind(), 1);
  EXPECT_TRUE(dpo.tokenizer_given);
  EXPECT_FALSE(dpo.overflow_given);
  const SampleRules reward = rules_of("reward", {"data.overflow=drop"});
  EXPECT_TRUE(reward.scores_documents);
  EXPECT_EQ(reward.targets_behind(), 0);
  EXPECT_TRUE(reward.overflow_given);
  const SampleRules grpo =
      rules_of("grpo", {"rewards.functions=exact:answer", "rollout.max_new_tokens=16", "batch.global=8"});
  EXPECT_EQ(grpo.room(64), 48);
  EXPECT_EQ(rules_of("sft", {}).room(64), 64) << "the control";
  EXPECT_TRUE(rules_of("sft", {}).begins_like_tokenizer);
  EXPECT_FALSE(rules_of("pretrain", {}).begins_like_tokenizer);
}

}  // namespace
}  // namespace llmtrain
