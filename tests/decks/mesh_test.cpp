// The ledger of a run is the same for every mesh of ranks that divides its blocks.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

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

  /// The ledger of a run of the deck that the keys begin with.
  std::string ledger_of_deck(int ranks, std::vector<std::string> keys) {
    const std::string name = "run" + std::to_string(++runs);
    keys.push_back("run.name=" + name);
    const Outcome outcome = llmtrain({ranks, 1, keys, "", ""});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.exit_code == 0 ? ledger(name) : outcome.output + name;
  }
  /// Writes a deck with a published model on rows of token ids; returns its path.
  std::string deck_of_ids(const std::string& model) {
    std::string rows;
    for (int row = 0; row < 24; ++row) {
      rows += "{\"input_ids\": [3";
      for (int i = 0; i < 12 + row % 5; ++i) rows += fmt::format(", {}", 3 + (7 * i * i + 3 * row) % 38);
      rows += "]}\n";
    }
    write_file(folder / "rows.jsonl", rows);
    std::string path = (folder / (model + ".ini")).string();
    write_file(path, fmt::format("[run]\noutput = {0}\n[model]\npath = {1}\n[data]\ntrain = {0}/rows.jsonl\n"
                                 "packing = none\nvalidation_fraction = 0.2\n[batch]\nsequence_length = 24\nmicro = 2\n"
                                 "global = 4\n[schedule]\nlearning_rate = 0.01\n[checkpoint]\nat_end = false\n",
                                 folder.text(), (source_folder() / "tests/reference/hf" / model).string()));
    return path;
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

TEST_F(Mesh, OfLatentAttentionHasTheLedgerOfOneRank) {
  const std::vector<std::string> latent = {
      "parallel.context_blocks=2", "model.family=deepseek_v3",  "model.n_kv_heads=4",
      "model.q_lora_rank=20",      "model.kv_lora_rank=12",     "model.qk_nope_head_dim=6",
      "model.qk_rope_head_dim=4",  "model.v_head_dim=8",        "objective.router_bias_rate=0.01",
      "model.n_experts=4",         "model.experts_per_token=2", "model.dense_layers=0"};
  const std::string expected = ledger_of(1, latent);
  EXPECT_EQ(ledger_of(2, with(latent, {"parallel.context=2", "parallel.zero=3"})), expected);
  EXPECT_EQ(ledger_of(2, with(latent, {"memory.recompute=block"})), expected);
  EXPECT_NE(ledger_of(1, with(latent, {"model.rope_interleave=false"})), expected) << "the control";
  EXPECT_NE(ledger_of(1, with(latent, {"objective.router_bias_rate=0"})), expected) << "the biases matter";
  const std::vector<std::string> split = with(latent, {"parallel.tensor_blocks=2"});
  EXPECT_EQ(ledger_of(4, with(split, {"parallel.tensor=2", "parallel.context=2", "parallel.zero=2"})),
            ledger_of(1, split));
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

// Adapters of the head and of a matrix with trained rows, and trained biases: each block of rows has gradients apart.
TEST_F(Mesh, AdaptersHaveTheLedgerOfOneRank) {
  const std::vector<std::string> biases = {"lora.target_modules=q_proj, up_proj, lm_head", "lora.bias=all"};
  const std::vector<std::string> rows = {"lora.target_modules=q_proj, lm_head", "lora.modules_to_save=v_proj"};
  for (const auto& [model, lora] :
       std::map<std::string, std::vector<std::string>>{{"qwen2", biases}, {"llama", rows}}) {
    const std::vector<std::string> keys = with(
        {deck_of_ids(model), "run.finetuning=lora", "lora.r=2", "run.max_steps=2", "parallel.context_blocks=2"}, lora);
    const std::string expected = ledger_of_deck(1, keys);
    EXPECT_EQ(ledger_of_deck(2, with(keys, {"parallel.context=2"})), expected);
    EXPECT_EQ(ledger_of_deck(2, with(keys, {"parallel.zero=3"})), expected);
  }
}

// Two tokens, then 96.
TEST_F(Mesh, ShortMicroBatchesHaveEmptyRows) {
  const std::vector<std::string> keys = {
      "parallel.context_blocks=4",  "data.packing=wrap",      "batch.micro=1",
      "curriculum.strategy=length", "curriculum.shape=steps", "curriculum.levels=2:2, 96"};
  const std::string expected = ledger_of(1, keys);
  EXPECT_EQ(ledger_of(4, with(keys, {"parallel.context=2"})), expected);
}

// A rank with the smaller share of an odd number of rows recomputes; the second block of the vocabulary is padding.
TEST_F(Mesh, SharesOddRowsAndAPaddedVocabulary) {
  const std::vector<std::string> keys = {"data.packing=wrap",
                                         "batch.sequence_length=61",
                                         "batch.micro=1",
                                         "batch.global=3",
                                         "memory.recompute=block",
                                         "model.vocab_size=256",
                                         "parallel.context_blocks=2",
                                         "parallel.tensor_blocks=2"};
  const std::string expected = ledger_of(1, keys);
  EXPECT_EQ(ledger_of(2, with(keys, {"parallel.context=2"})), expected);
  EXPECT_EQ(ledger_of(2, with(keys, {"parallel.tensor=2"})), expected);
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

/// Ranks of a job, ranks along two of its axes, and what does not touch the results either.
struct Layout {
  int ranks, tensor, context, zero;
  const char* recompute = "none";

  std::vector<std::string> keys() const {
    return {fmt::format("parallel.tensor={}", tensor), fmt::format("parallel.context={}", context),
            fmt::format("parallel.zero={}", zero), std::string("memory.recompute=") + recompute};
  }
};

/// Blocks, and meshes that divide them; the first one is one rank.
struct Blocks {
  std::vector<std::string> keys;
  std::vector<Layout> layouts;
};

// Tensor blocks with a key head each, whose keys are gathered, and blocks of rows of which a rank has one, two or four.
TEST_F(Mesh, LedgersFollowFromTheBlocksAlone) {
  const std::vector<std::string> model = {"model.n_heads=8", "model.n_kv_heads=4", "model.d_ff=64", "model.n_layers=1",
                                          "run.max_steps=2"};
  const std::vector<Blocks> all = {
      {{"parallel.tensor_blocks=4", "parallel.context_blocks=2", "parallel.reduction=tree", "precision.compute=bf16"},
       {{1, 1, 1, 1},
        {2, 2, 1, 0},
        {2, 1, 2, 3},
        {2, 1, 1, 2},
        {4, 4, 1, 1, "attention"},
        {4, 2, 2, 3, "block"},
        {4, 2, 1, 2},
        {4, 1, 2, 0, "activation"},
        {8, 4, 2, 2}}},
      {{"parallel.tensor_blocks=2", "parallel.context_blocks=4", "parallel.reduction=ordered",
        "precision.compute=fp32"},
       {{1, 1, 1, 2, "block"},
        {2, 2, 1, 3},
        {2, 1, 2, 1},
        {2, 1, 2, 2, "attention"},
        {2, 1, 1, 0},
        {4, 1, 4, 0, "block"},
        {4, 2, 2, 0},
        {4, 2, 1, 1},
        {4, 1, 2, 3},
        {8, 2, 4, 3, "block"}}},
      {{"parallel.context_blocks=4", "parallel.reduction=tree", "precision.compute=bf16"},
       {{1, 1, 1, 0}, {2, 1, 2, 0}, {4, 1, 4, 2}, {4, 1, 2, 1, "block"}, {3, 1, 1, 3}}}};
  std::vector<std::string> ledgers;
  for (const Blocks& blocks : all) {
    const std::vector<std::string> keys = with(model, blocks.keys);
    for (const Layout& layout : blocks.layouts) {
      const std::string found = ledger_of(layout.ranks, with(keys, layout.keys()));
      if (layout.ranks == 1) ledgers.push_back(found);
      EXPECT_EQ(found, ledgers.back()) << fmt::format("{} ranks, {} x {}, stage {}", layout.ranks, layout.tensor,
                                                      layout.context, layout.zero);
    }
  }
  const std::vector<std::string> like_first = with(model, {"precision.compute=bf16", "parallel.reduction=tree"});
  EXPECT_NE(ledger_of(1, with(like_first, {"parallel.context_blocks=2"})), ledgers.front())
      << "control: matrices in one block";
  EXPECT_NE(ledger_of(1, with(like_first, {"parallel.tensor_blocks=4"})), ledgers.front())
      << "control: rows in one block";
}

// Models of every role, quantised matrices and generation on a mesh of both axes.
TEST_F(Mesh, OfAllTasksHasTheLedgerOfOneRank) {
  const auto file = [](const std::string& name) { return (source_folder() / "tests/reference" / name).string(); };
  const std::string head = "[run]\nmax_steps = 2\noutput = " + folder.text() +
                           "\n[batch]\nsequence_length = 64\nmicro = 2\nglobal = 4\n[schedule]\nlearning_rate = "
                           "1e-3\n[checkpoint]\nat_end = false\n";
  const auto deck_of = [&](const std::string& model, const std::string& data, const std::string& sections) {
    return head + "[model]\npath = " + file(model) + "\n[data]\ntrain = " + file(data) + "\n" + sections;
  };
  const std::map<std::string, std::string> decks = {
      {"grpo", deck_of("sft/model", "preference/texts.jsonl",
                       "[rollout]\nmax_new_tokens = 9\n[grpo]\ngroup_size = 2\n[rewards]\nfunctions = regex:s\n")},
      {"ppo", deck_of("sft/model", "preference/texts.jsonl",
                      "[rollout]\nmax_new_tokens = 9\n[ppo]\nepochs = 1\nreward_model = " +
                          file("preference/reward_model") + "\n")},
      {"reward", deck_of("preference/reward_model", "preference/texts.jsonl", "validation_fraction = 0\n")},
      {"sft", deck_of("sft/model", "sft/messages.jsonl",
                      "validation_fraction = 0\n[lora]\nr = 2\ntarget_modules = q_proj, down_proj, lm_head\n"
                      "[quantization]\nbits = 4\n")}};
  for (const auto& [task, text] : decks) {
    SCOPED_TRACE(task);
    write_file((folder / (task + ".ini")).string(), text);
    std::vector<std::string> keys = {(folder / (task + ".ini")).string(), "run.task=" + task,
                                     "parallel.context_blocks=2", "parallel.tensor_blocks=2"};
    if (task == "sft") keys.emplace_back("run.finetuning=lora");
    const std::string expected = ledger_of_deck(1, keys);
    EXPECT_EQ(ledger_of_deck(4, with(keys, {"parallel.context=2", "parallel.tensor=2", "parallel.zero=3"})), expected);
  }
}

// A deck of a training run evaluates with its blocks of matrices; ranks that would share rows have batches of their
// own.
TEST_F(Mesh, OfATrainingDeckEvaluates) {
  const auto evaluate = [&](const std::string& name, int ranks, const std::vector<std::string>& more) {
    const std::vector<std::string> keys = {deck_of_ids("llama"), "run.name=" + name, "run.task=evaluate",
                                           "parallel.context=2", "parallel.tensor_blocks=2"};
    const Outcome outcome = llmtrain({ranks, 1, with(keys, more), "", ""});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return read_file(folder / name / "evaluation.json");
  };
  const std::string expected = evaluate("one", 1, {});
  EXPECT_FALSE(expected.empty());
  EXPECT_EQ(evaluate("two", 2, {}), expected);
  EXPECT_EQ(evaluate("matrices", 2, {"parallel.tensor=2"}), expected);
}

TEST_F(Mesh, IsRefusedWithNumbersThatFit) {
  const Outcome heads = run("heads", 1, {"parallel.context_blocks=8"});
  EXPECT_EQ(heads.exit_code, 78);
  EXPECT_THAT(heads.output,
              HasSubstr("8 blocks of rows do not divide the model's 4 heads with 2 key heads: 1, 2 or 4 fit"));
  const Outcome ranks = run("ranks", 3, {"parallel.context=2"});
  EXPECT_EQ(ranks.exit_code, 78) << ranks.output;
}

}  // namespace
}  // namespace llmtrain::test
