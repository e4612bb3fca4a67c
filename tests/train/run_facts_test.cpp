// What data, device and Slurm decide takes the place of what a deck leaves open; the deck itself does not change.

#include "config/run_facts.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "train/config/load_config.hpp"

namespace llmtrain {
namespace {

using testing::HasSubstr;

Config load(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"run.max_steps=1", "model.d_model=8",     "model.n_layers=1",
                                        "model.n_heads=1", "data.train=text.txt", "batch.sequence_length=64"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return load_config("", "tiny.ini", arguments);
}

TEST(RunFacts, AreShownAsAutomatic) {
  const Config deck = load({});
  const std::string before = write_deck(deck);
  EXPECT_THAT(before, HasSubstr("# vocab_size: the tokenizer's\n"));
  EXPECT_EQ(write_deck(with_facts(deck, RunFacts(deck))), before) << "nothing is decided";
  RunFacts facts(deck);
  facts.vocabulary = 65;
  facts.compute = PrecisionConfig::Compute::bf16;
  const std::string after = write_deck(with_facts(deck, facts));
  EXPECT_THAT(after, HasSubstr("vocab_size = 65                              ; automatic: the tokenizer's\n"));
  EXPECT_THAT(after, HasSubstr("compute = bf16                               ; automatic: the device's\n"));
  EXPECT_EQ(load_config(after, "d.ini", {}).model.vocab_size, 65);
  EXPECT_EQ(write_deck(deck), before);
}

TEST(RunFacts, KeepWhatTheDeckGives) {
  const Config deck = load({"model.vocab_size=300", "precision.compute=fp32", "run.overwrite=true"});
  RunFacts facts(deck);
  EXPECT_EQ(facts.vocabulary, 300);
  EXPECT_EQ(facts.compute, PrecisionConfig::Compute::fp32);
  facts.overwrite = false;
  facts.add_note("resumes");
  facts.add_note("");
  const Config config = with_facts(deck, facts);
  EXPECT_FALSE(config.run.overwrite);
  EXPECT_EQ(config.notes.size(), deck.notes.size() + 1);
  EXPECT_TRUE(config.provenance.given("model.vocab_size"));
}

}  // namespace
}  // namespace llmtrain
