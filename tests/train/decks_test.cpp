// The decks in inputs/: they load, train on the example corpus, and have the shapes that the documentation states.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <sstream>
#include <string>

#include "train/config/load_config.hpp"

namespace llmtrain {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::filesystem::path& inputs() {
  static const std::filesystem::path folder = "inputs";
  return folder;
}

/// Fine-tuning decks go on from the quickstart's run, which is not there.
std::vector<std::string> arguments_of(const std::string& name) {
  if (std::set<std::string>{"dpo", "dpo_lora", "kto", "reward", "grpo", "ppo"}.contains(name)) {
    std::vector<std::string> keys = {"model.path=tests/reference/sft/model",
                                     "data.train=tests/reference/preference/texts.jsonl"};
    if (name == "ppo") keys.emplace_back("ppo.reward_model=tests/reference/preference/reward_model");
    return keys;
  }
  if (name == "distill") {
    return {"distill.teacher=tests/reference/sft/model", "data.tokenizer=tests/reference/sft/model"};
  }
  if (name == "generate") {
    return {"model.path=tests/reference/sft/model", "generate.prompts=tests/reference/preference/texts.jsonl"};
  }
  if (!std::set<std::string>{"sft", "freeze", "lora", "dora", "qlora", "int8", "classify", "evaluate"}.contains(name))
    return {};
  return {"model.path=tests/reference/sft/model", "data.train=tests/reference/sft/completions.jsonl"};
}

Config load(const std::string& name) {
  const std::string path = inputs() / (name + ".ini");
  return load_config(read_deck_file(path), path, arguments_of(name));
}

std::vector<int64_t> shape(const Config& c) {
  return {c.model.d_model, c.model.n_layers, c.model.n_heads, c.model.d_ff, c.batch.sequence_length};
}

TEST(ShippedDecks, LoadAndTrainOnTheExampleCorpus) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(inputs())) {
    if (entry.path().extension() != ".ini") continue;
    ++count;
    const Config c = load(entry.path().stem());
    EXPECT_EQ(c.run.name, entry.path().stem());
    if (c.run.task == Task::pretrain) {
      EXPECT_THAT(c.data.train, ElementsAre(builtin_stories));
    }
    EXPECT_THAT(c.data.validation, IsEmpty());
    EXPECT_EQ(c.data.validation_fraction > 0, !reinforcement_tasks.contains(c.run.task));
    EXPECT_THAT(c.notes, IsEmpty()) << entry.path();
  }
  EXPECT_GE(count, 7);
}

TEST(ShippedDecks, EveryLineIsCommented) {
  for (const auto& entry : std::filesystem::directory_iterator(inputs())) {
    std::istringstream lines(read_deck_file(entry.path()));
    for (std::string line; std::getline(lines, line);) {
      EXPECT_TRUE(line.empty() || line.starts_with("#") || line.find(" ; ") != std::string::npos)
          << entry.path() << line;
    }
  }
}

TEST(ShippedDecks, CanBeCutToAFewSteps) {
  for (const auto& entry : std::filesystem::directory_iterator(inputs())) {
    std::vector<std::string> arguments = arguments_of(entry.path().stem());
    arguments.push_back("run.max_steps=3");
    EXPECT_NO_THROW(load_config(read_deck_file(entry.path()), entry.path(), arguments)) << entry.path();
  }
}

TEST(ShippedDecks, HaveTheirShapes) {
  EXPECT_THAT(shape(load("shakespeare_char")), ElementsAre(128, 4, 4, 512, 64));
  EXPECT_EQ(load("shakespeare_char").batch.global, 12);
  EXPECT_EQ(load("shakespeare_char").run.max_steps, 2000);
  EXPECT_THAT(shape(load("small")), ElementsAre(256, 4, 4, 1024, 512));
  EXPECT_THAT(shape(load("medium")), ElementsAre(768, 12, 12, 3072, 1024));
  EXPECT_EQ(load("medium").model.vocab_size, 50304);
  EXPECT_THAT(shape(load("large")), ElementsAre(1024, 24, 16, 4096, 2048));
  for (const char* name : {"medium", "large"}) EXPECT_EQ(shape(load(std::string(name) + "_gpu")), shape(load(name)));
  EXPECT_EQ(load("quickstart").data.packing, DataConfig::Packing::none);
  EXPECT_EQ(load("quickstart").data.document_separator, "\n\n");
}

}  // namespace
}  // namespace llmtrain
