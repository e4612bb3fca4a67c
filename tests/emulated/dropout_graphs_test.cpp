// Dropout in graphs of the device, over ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "decks/run_folder.hpp"

namespace llmtrain::test {
namespace {

using ::testing::HasSubstr;

const DocumentsDeck deck{3, 2, 4, "", 24, 48};

class EmulatedGraphs : public RunFolder {
 protected:
  EmulatedGraphs() : RunFolder(text_of_documents(16), deck.text()) {}
};

// A launched graph draws the masks of its own step, on one rank and on two.
TEST_F(EmulatedGraphs, GraphsWithDropoutHaveTheLedgerOfPlainPasses) {
  std::string text = read_file(folder / "deck.ini");
  const size_t model = text.find("d_model"), data = text.find("[data]");
  text.replace(model, data - model, "path = " + (source_folder() / "tests/reference/hf/llama").string() + "\n");
  write_file(folder / "lora.ini", "[lora]\nr = 4\ndropout = 0.3\n" + text + "[run]\nfinetuning = lora\n");
  const auto train = [&](const std::string& deck_name, int ranks, const std::string& name, const char* more) {
    std::vector<std::string> all = arguments(
        name, {"run.max_steps=6", "data.packing=wrap", "data.cross_document_attention=true", "batch.global=16",
               "parallel.reduction_groups=2", "parallel.zero=1", "evaluation.every_steps=0", "evaluation.at_end=false",
               "data.cache=" + (folder / "cache").string(), more});
    all.front() = (folder / deck_name).string();
    const Outcome outcome = llmtrain({ranks, 1, all, "", "LLMTRAIN_EMULATOR_DEVICES=2"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.output;
  };
  for (const char* deck_name : {"deck.ini", "lora.ini"}) {
    const std::string name = deck_name;
    EXPECT_THAT(train(deck_name, 1, name + "one", "parallel.cuda_graphs=true"), HasSubstr(" passes ran as graphs"));
    EXPECT_THAT(train(deck_name, 2, name + "two", "parallel.cuda_graphs=true"),
                HasSubstr("11 of 24 passes ran as graphs"));
    train(deck_name, 2, name + "plain", "parallel.cuda_graphs=false");
    train(deck_name, 1, name + "seed", "run.seed=2");
    const std::string expected = ledger(name + "plain");
    EXPECT_THAT(expected, HasSubstr("\"step\":6,"));
    EXPECT_EQ(ledger(name + "one"), expected);
    EXPECT_EQ(ledger(name + "two"), expected);
    EXPECT_NE(ledger(name + "seed"), expected) << "control";
  }
}

}  // namespace
}  // namespace llmtrain::test
