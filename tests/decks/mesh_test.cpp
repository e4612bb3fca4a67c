// The ledger of a run is the same for every mesh of ranks that divides its blocks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "decks/run_folder.hpp"

namespace llmtrain::test {
namespace {

using ::testing::HasSubstr;

/// Grouped queries, dropout, accumulation, documents of different lengths, a short last step of an epoch.
constexpr const char* deck = R"([run]
max_steps = 4
output = FOLDER
[model]
family = llama
d_model = 32
n_layers = 2
n_heads = 4
n_kv_heads = 2
d_ff = 48
dropout = 0.1
attention_dropout = 0.1
[data]
train = TEXT
tokenizer = char
packing = none
document_separator = blank_line
validation_fraction = 0.2
[batch]
sequence_length = 96
micro = 2
global = 10
[schedule]
learning_rate = 3e-3
[evaluation]
every_steps = 2
[log]
parameter_hash_every_steps = 1
)";

class Mesh : public RunFolder {
 protected:
  Mesh() : RunFolder(text_of_documents(60), deck) {}

  /// Runs, or goes on with, the run of a name.
  Outcome run(const std::string& name, int ranks, std::vector<std::string> keys) {
    keys.push_back("data.cache=" + (folder / "cache").string());
    return llmtrain({ranks, 1, arguments(name, keys), "", ""});
  }
  /// The ledger of one run, or the output if it failed.
  std::string ledger_of(int ranks, const std::vector<std::string>& keys) {
    const std::string name = "run" + std::to_string(++runs);
    const Outcome outcome = run(name, ranks, keys);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.exit_code == 0 ? ledger(name) : outcome.output + name;
  }

  int runs = 0;
};

std::vector<std::string> with(std::vector<std::string> keys, const std::vector<std::string>& more) {
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

// Four blocks and two key heads: ranks gather the keys of a head; two blocks: each key head is on one rank.
TEST_F(Mesh, OfSharedRowsHasTheLedgerOfOneRank) {
  const std::vector<std::string> four = {"parallel.context_blocks=4", "precision.compute=bf16"};
  const std::string expected = ledger_of(1, four);
  EXPECT_EQ(ledger_of(2, with(four, {"parallel.context=2", "parallel.zero=3"})), expected);
  EXPECT_EQ(ledger_of(4, with(four, {"parallel.context=4", "parallel.zero=0"})), expected);
  EXPECT_EQ(ledger_of(4, with(four, {"parallel.context=2", "memory.recompute=block", "parallel.zero=2"})), expected);
  const std::vector<std::string> two = {"parallel.context_blocks=2", "precision.compute=fp32",
                                        "parallel.reduction=tree"};
  const std::string along_tree = ledger_of(1, two);
  EXPECT_EQ(ledger_of(4, with(two, {"parallel.context=2"})), along_tree);
  EXPECT_NE(ledger_of(2, {"parallel.context_blocks=2", "precision.compute=bf16"}), expected) << "the control";
}

TEST_F(Mesh, OfSharedMatricesHasTheLedgerOfOneRank) {
  const std::vector<std::string> two = {"parallel.tensor_blocks=2", "precision.compute=bf16"};
  const std::string expected = ledger_of(1, two);
  EXPECT_EQ(ledger_of(2, with(two, {"parallel.tensor=2", "parallel.zero=0"})), expected);
  EXPECT_EQ(ledger_of(4, with(two, {"parallel.tensor=2", "parallel.zero=3", "memory.recompute=block"})), expected);
  EXPECT_NE(ledger_of(1, {"precision.compute=bf16"}), expected) << "the control: matrices in one block";
  const std::vector<std::string> both = {"parallel.tensor_blocks=2", "parallel.context_blocks=2",
                                         "parallel.reduction=tree"};
  EXPECT_EQ(ledger_of(4, with(both, {"parallel.tensor=2", "parallel.context=2"})), ledger_of(1, both));
}

TEST_F(Mesh, ChangesBetweenRuns) {
  const std::vector<std::string> keys = {"parallel.context_blocks=2", "parallel.tensor_blocks=2",
                                         "evaluation.every_steps=0"};
  const std::string expected = ledger_of(1, keys);
  const auto go_on = [&](int ranks, const std::vector<std::string>& more) {
    const Outcome outcome = run("moved", ranks, with(keys, more));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  };
  const Outcome first = run("moved", 4,
                            {"parallel.context=2", "parallel.tensor=2", "evaluation.every_steps=0", "run.max_steps=1",
                             "evaluation.at_end=false"});
  EXPECT_EQ(first.exit_code, 0) << first.output;  // its blocks are the ranks of the axes
  go_on(1, {"run.max_steps=2", "evaluation.at_end=false"});
  go_on(2, {"parallel.tensor=2", "parallel.zero=2", "run.max_steps=3", "evaluation.at_end=false"});
  const Outcome refused =
      run("moved", 2, {"parallel.context_blocks=1", "parallel.tensor_blocks=2", "evaluation.every_steps=0"});
  EXPECT_EQ(refused.exit_code, 73) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("parallel.context_blocks"));
  go_on(2, {"parallel.context=2", "parallel.zero=3"});
  EXPECT_EQ(ledger("moved"), expected);
}

TEST_F(Mesh, IsRefusedWithNumbersThatFit) {
  const Outcome heads = run("heads", 1, {"parallel.context_blocks=8"});
  EXPECT_EQ(heads.exit_code, 78);
  EXPECT_THAT(heads.output, HasSubstr("8 blocks of rows do not divide 4 heads with 2 key heads: 1, 2, 4 would fit"));
  const Outcome ranks = run("ranks", 3, {"parallel.context=2"});
  EXPECT_EQ(ranks.exit_code, 78) << ranks.output;
}

}  // namespace
}  // namespace llmtrain::test
