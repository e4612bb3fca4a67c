// Keys of [data] for conversations.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "methods/method.hpp"
#include "train/config/load_config.hpp"

namespace llmtrain {
namespace {

using ::testing::HasSubstr;
using Packing = DataConfig::Packing;
using Overflow = DataConfig::Overflow;

Config load_deck(const std::string& task, const std::vector<std::string>& arguments) {
  return load_config("[run]\nmax_steps = 10\ntask = " + task +
                         "\n[model]\nd_model = 64\nn_layers = 2\nn_heads = 4\n[data]\ntrain = rows.jsonl\n[batch]\n"
                         "sequence_length = 32\nglobal = 4\n",
                     "tiny.ini", arguments, DeckFiles::recorded);
}

std::string errors_with(const std::string& task, const std::vector<std::string>& arguments) {
  try {
    load_deck(task, arguments);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::deck);
    return error.what();
  }
  return "no error";
}

/// A deck may serve several tasks, but sections of one task alone are refused elsewhere, and the other keys are named.
TEST(ConversationDeck, KeysThatATaskDoesNotUseAreNamed) {
  const Config evaluated = load_deck(
      "evaluate", {"model.path=m", "model.max_seq_len=64", "schedule.learning_rate=1", "run.finetuning=freeze"});
  EXPECT_THAT(evaluated.notes,
              testing::Contains(
                  HasSubstr("run.task: evaluate does not use run.finetuning, run.max_steps, schedule.learning_rate")));
  EXPECT_THAT(errors_with("evaluate", {"model.path=m", "model.max_seq_len=64", "freeze.trainable_layers=1"}),
              HasSubstr("freeze.trainable_layers: run.task = evaluate does not use it; it is a key of pretrain, sft"));
  EXPECT_THAT(errors_with("sft", {"model.path=", "checkpoint.export=last"}),
              testing::Not(HasSubstr("other programs could not read")));
}

TEST(ConversationDeck, TasksSetTheDefaults) {
  const Config text = load_deck("pretrain", {"run.seed=7"});
  EXPECT_EQ(text.data.packing, Packing::wrap);
  EXPECT_EQ(sample_rules(text).text_format().row_format, "text");
  EXPECT_EQ(text.data.seed, 7);
  EXPECT_EQ(load_deck("pretrain", {"data.seed=8"}).data.seed, 8);
  const Config rows = load_deck("sft", {});
  EXPECT_EQ(rows.data.packing, Packing::none);
  EXPECT_EQ(rows.data.overflow, Overflow::truncate);
  EXPECT_EQ(sample_rules(rows).text_format().row_format, "auto");
  EXPECT_EQ(load_deck("sft", {"data.packing=best_fit", "data.overflow=drop"}).data.packing, Packing::best_fit);
  const Config columns = load_deck("sft", {"data.columns=text:body,response:answer"});
  EXPECT_EQ(columns.data.text_column, "body");
  const Config tokens = load_deck("sft", {"data.max_tokens_per_batch=64"});
  EXPECT_EQ(tokens.batch.micro, 1);
  EXPECT_EQ(tokens.batch.gradient_accumulation_steps, 4);
  for (const Config* config : {&text, &rows, &columns, &tokens}) {
    EXPECT_TRUE(differences(*config, write_deck(*config), "again.ini").empty());
  }
}

TEST(ConversationDeck, KeysAreRefusedWhereTheyHaveNoUse) {
  EXPECT_EQ(errors_with("pretrain", {"data.format=text", "data.min_length=3", "data.seed=1"}), "no error");
  EXPECT_THAT(errors_with("pretrain", {"data.format=alpaca"}), HasSubstr("data.format: alpaca has no use"));
  EXPECT_THAT(errors_with("pretrain", {"data.columns=prompt:q"}), HasSubstr("it serves " + instruction_tasks.text()));
  EXPECT_THAT(errors_with("pretrain", {"data.group_by_length=true"}), HasSubstr("data.group_by_length: has no use"));
  EXPECT_THAT(errors_with("pretrain", {"data.max_tokens_per_batch=64"}),
              HasSubstr("data.max_tokens_per_batch: has no"));
  EXPECT_THAT(errors_with("pretrain", {"data.packing=none", "data.overflow=drop"}), HasSubstr("drop has no use"));
  EXPECT_THAT(errors_with("sft", {"data.format=alpacca"}), HasSubstr("did you mean alpaca?"));
  EXPECT_THAT(errors_with("sft", {"data.format=alpaca", "data.columns=completion:x"}),
              HasSubstr("'completion' is not a role of format alpaca"));
  EXPECT_THAT(errors_with("sft", {"data.columns=text:a", "data.text_column=b"}), HasSubstr("a different text column"));
  EXPECT_THAT(errors_with("sft", {"data.group_by_length=true", "data.shuffle=false"}), HasSubstr("needs data.shuffle"));
  EXPECT_THAT(errors_with("sft", {"data.max_tokens_per_batch=31"}), HasSubstr("31 is less than a sample can have"));
  EXPECT_THAT(errors_with("sft", {"data.max_tokens_per_batch=64", "parallel.reduction_groups=2"}),
              HasSubstr("the number of micro-batches varies"));
  EXPECT_THAT(errors_with("sft", {"data.max_tokens_per_batch=64", "batch.global=4"}), "no error");
}

}  // namespace
}  // namespace llmtrain
