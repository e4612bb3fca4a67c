// The ledger of a run is a function of its deck: not one byte may depend on ranks, threads or the ZeRO stage.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "decks/run_folder.hpp"

namespace llmtrain::test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

/// A model whose units are not divisible by any rank count, with all features that could go wrong: tied embedding,
/// dropout, accumulation, packing without padding, a short last step of an epoch, evaluations.
constexpr const char* awkward_deck = R"([run]
max_steps = 7
output = FOLDER
[model]
family = gpt2
d_model = 36
n_layers = 3
n_heads = 3
d_ff = 90
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
name = cosine
learning_rate = 3e-3
warmup_steps = 2
[evaluation]
every_steps = 3
[log]
parameter_hash_every_steps = 1
)";

class Ledger : public RunFolder {
 protected:
  Ledger() : RunFolder(text_of_documents(60), awkward_deck) {}

  /// The ledger of one run, or the output if it failed.
  std::string run(int ranks, int threads, std::vector<std::string> overrides) {
    const std::string name = "run" + std::to_string(++runs);
    overrides.push_back("data.cache=" + (folder / "cache").string());
    const Outcome outcome = llmtrain({ranks, threads, arguments(name, overrides), "", environment});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.exit_code == 0 ? ledger(name) : outcome.output + name;
  }

  void expect_identical(const std::vector<std::string>& overrides) {
    const std::string expected = run(1, 1, overrides);
    EXPECT_EQ(run(1, 2, overrides), expected) << "two threads";
    const auto with = [&](int stage) {
      std::vector<std::string> all = overrides;
      all.push_back("parallel.zero=" + std::to_string(stage));
      return all;
    };
    for (int stage : {0, 2, 3}) EXPECT_EQ(run(1, 1, with(stage)), expected) << "one rank, stage " << stage;
    for (int ranks : {2, 3}) {
      for (int stage : {0, 1, 2, 3})
        EXPECT_EQ(run(ranks, 1, with(stage)), expected) << ranks << " ranks, stage " << stage;
    }
    EXPECT_EQ(run(2, 2, with(3)), expected) << "2 ranks of 2 threads";
    EXPECT_EQ(run(4, 1, with(1)), expected) << "4 ranks";
    environment = "LLMTRAIN_RANKS_PER_NODE=2";
    for (int stage : {0, 1, 2, 3}) EXPECT_EQ(run(3, 1, with(stage)), expected) << "2 nodes, stage " << stage;
    environment = "LLMTRAIN_RANKS_PER_NODE=1";
    EXPECT_EQ(run(2, 1, with(3)), expected) << "messages alone";
    environment.clear();
    for (int stage : {0, 1, 2, 3})
      EXPECT_EQ(run(7, 1, with(stage)), expected) << "more ranks than groups, stage " << stage;
  }

  std::string environment;
  int runs = 0;
};

TEST_F(Ledger, HasTheLinesOfTheContract) {
  std::istringstream lines(run(1, 1, {"precision.compute=fp32"}));
  std::string line;
  int steps = 0, evaluations = 0;
  while (std::getline(lines, line)) {
    if (line.find("validation_loss") != std::string::npos) {
      EXPECT_TRUE(line.starts_with("{\"step\":")) << line;
      ++evaluations;
      continue;
    }
    ++steps;
    EXPECT_TRUE(line.starts_with("{\"step\":" + std::to_string(steps) + ",\"learning_rate\":\"0x")) << line;
    size_t at = 0;
    for (const char* key :
         {"\"loss\":\"0x", "\"grad_norm\":\"0x", "\"tokens\":", "\"samples\":\"", "\"parameters\":\""}) {
      const size_t next = line.find(key, at);
      EXPECT_NE(next, std::string::npos) << key << " in " << line;
      at = next;
    }
  }
  EXPECT_EQ(steps, 7);
  EXPECT_EQ(evaluations, 3) << "after steps 3 and 6, and at the end";
}

TEST_F(Ledger, IsIdenticalWhereRanksHaveNoRoomToShareMemory) {
  const std::string little = R"(unshare --mount sh -c 'mount -t tmpfs -o size=28m none /dev/shm && exec "$0" "$@"' )";
  if (shell(little + "true").exit_code != 0) GTEST_SKIP() << "nothing can be mounted here";
  const std::string expected = run(1, 1, {});
  const Outcome outcome = shell("export OMP_NUM_THREADS=1; " + little + command("little", 2));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("as messages"));
  EXPECT_EQ(ledger("little"), expected);
}

TEST_F(Ledger, HasTheTermsOfTheObjective) {
  const std::vector<std::string> plain = {"precision.compute=fp32"};
  std::vector<std::string> terms = plain;
  terms.insert(terms.end(), {"objective.z_loss=1e-3", "objective.label_smoothing=0.1", "objective.entropy_bonus=0.01"});
  const std::string expected = run(1, 1, terms), without = run(1, 1, plain);
  terms.push_back("parallel.zero=3");
  EXPECT_EQ(run(3, 1, terms), expected);
  EXPECT_NE(without, expected);
  const auto first_line = [](const std::string& ledger) {
    return nlohmann::json::parse(ledger.substr(0, ledger.find('\n')));
  };
  const nlohmann::json first = first_line(expected), first_without = first_line(without);
  const auto value = [](const nlohmann::json& text) { return std::strtod(text.get<std::string>().c_str(), nullptr); };
  // The first step's cross-entropy is that of the plain run, and the loss is the sum of the terms.
  const nlohmann::json& metrics = first["metrics"];
  EXPECT_DOUBLE_EQ(value(metrics["cross_entropy"]), value(first_without["loss"]));
  EXPECT_NEAR(value(first["loss"]),
              value(metrics["cross_entropy"]) + value(metrics["z_loss"]) + value(metrics["label_smoothing"]) -
                  0.01 * value(metrics["entropy"]),
              1e-6);
}

TEST_F(Ledger, HasTheValuesOfACurriculum) {
  for (const std::vector<std::string>& keys :
       {std::vector<std::string>{"curriculum.strategy=length", "data.packing=best_fit", "curriculum.start=16"},
        std::vector<std::string>{"curriculum.strategy=difficulty", "curriculum.start=30"}}) {
    std::vector<std::string> growing = keys;
    growing.insert(growing.end(), {"precision.compute=fp32", "curriculum.steps=5"});
    const std::string expected = run(1, 1, growing);
    EXPECT_THAT(expected, HasSubstr("\"curriculum\":"));
    EXPECT_EQ(run(3, 1, growing), expected);
    growing.back() = "curriculum.steps=6";  // the control
    EXPECT_NE(run(1, 1, growing), expected);
  }
}

TEST_F(Ledger, IsIdenticalInFp32) { expect_identical({"precision.compute=fp32"}); }

TEST_F(Ledger, IsIdenticalInBf16) { expect_identical({"precision.compute=bf16"}); }

TEST_F(Ledger, Tf32OfAProcessorIsFp32) {
  const std::string rounded = run(1, 1, {"precision.compute=tf32"});
  EXPECT_EQ(rounded, run(1, 1, {"precision.compute=fp32"}));
  const std::string log = read_file(folder / "run1/log.txt");
  EXPECT_THAT(log, HasSubstr("warning: command line: precision.compute: this device has no tf32"));
}

TEST_F(Ledger, IsIdenticalWithGroupsOfTwoInTwoBlocks) {
  expect_identical(
      {"precision.compute=fp32", "batch.global=12", "parallel.reduction_groups=3", "parallel.reduction_blocks=2"});
}

TEST_F(Ledger, IsIdenticalForAnUntiedLlamaOnPackedWindows) {
  expect_identical({"precision.compute=bf16", "model.family=llama", "model.n_kv_heads=1", "data.packing=wrap",
                    "model.sliding_window=20", "batch.sequence_length=50"});
}

TEST_F(Ledger, IsIdenticalForSourcesWithWeightsInPackedSamples) {
  std::string rows;
  for (int i = 0; i < 40; ++i) rows += "{\"n\":1,\"text\":\"row " + std::to_string(i * 37 % 101) + " says\\nword\"}\n";
  write_file(folder / "rows.jsonl", rows);
  const std::string both =
      "data.train=" + (folder / "text.txt").string() + ":0.7, " + (folder / "rows.jsonl").string() + ":0.3";
  expect_identical({"precision.compute=fp32", "data.packing=best_fit", both});
  const std::string text = run(1, 1, {"precision.compute=fp32", "data.packing=best_fit"});
  const std::string mixed = run(1, 1, {"precision.compute=fp32", "data.packing=best_fit", both});
  EXPECT_NE(mixed, text);
  EXPECT_NE(run(1, 1, {"precision.compute=fp32", "data.packing=first_fit", both}), mixed);
}

// A step of samples without a target has no loss, on any number of ranks, and its samples are reported once.
TEST_F(Ledger, IsIdenticalWhereStepsHaveNoTarget) {
  std::string rows;
  for (int i = 0; i < 12; ++i) {
    const std::string ids = std::to_string(i) + ",1,2,3,4";
    rows += "{\"input_ids\":[" + ids + "],\"labels\":[" + (i % 2 == 0 ? ids : "-100,-100,-100,-100,-100") + "]}\n";
  }
  write_file(folder / "rows.jsonl", rows);
  const std::vector<std::string> masked = {"data.train=" + (folder / "rows.jsonl").string(),
                                           "data.validation_fraction=0",
                                           "data.document_separator=none",
                                           "precision.compute=fp32",
                                           "batch.micro=1",
                                           "batch.global=2",
                                           "data.shuffle=false",
                                           "evaluation.every_steps=0"};
  std::vector<std::string> single = masked;
  single[5] = "batch.global=1";
  const std::string ledger = run(1, 1, single);
  EXPECT_THAT(ledger,
              AllOf(ContainsRegex("\"step\":1,[^}]*\"loss\":\"0x"), ContainsRegex("\"step\":2,[^}]*\"loss\":null,")));
  EXPECT_EQ(run(2, 1, single), ledger);
  EXPECT_THAT(read_file(folder / "run1/log.txt"),
              AllOf(HasSubstr("warning: 6 of 12 samples have no target"), HasSubstr("training loss       ")));
  EXPECT_THAT(run(1, 1, masked), Not(HasSubstr("null"))) << "each step has a sample with a target";
}

TEST_F(Ledger, IsIdenticalWhereGroupsDoNotDivideAndNoUnitIsFinal) {
  expect_identical({"precision.compute=fp32", "model.pre_norm=false", "batch.micro=1", "batch.global=9",
                    "parallel.reduction_groups=4", "parallel.reduction_blocks=3"});
}

// Components that GPT-2 and Llama lack, and rope that depends on the length of each document.
TEST_F(Ledger, IsIdenticalForAGemmaWithEverything) {
  expect_identical({"precision.compute=bf16", "model.family=gemma2", "model.n_kv_heads=1", "model.qk_norm=true",
                    "model.sliding_window=20", "model.rope_scaling=dynamic, factor 2", "model.max_seq_len=30",
                    "model.partial_rotary_factor=0.5"});
}

// Parallel branches behind one norm, grouped heads; norms of outputs alone, factors, two ropes, layers without one.
TEST_F(Ledger, IsIdenticalForPartsOfLaterFamilies) {
  std::vector<std::string> ledgers;
  for (std::vector<std::string> keys :
       {std::vector<std::string>{"model.family=falcon", "model.residual_multiplier=0.5"},
        std::vector<std::string>{"model.family=olmo2", "model.logits_scaling=3", "model.sliding_window=20",
                                 "model.sliding_window_layers=0", "model.rope_local_theta=50",
                                 "model.no_rope_layers=1"}}) {
    keys.emplace_back("precision.compute=bf16");
    ledgers.push_back(run(1, 2, keys));
    keys.emplace_back("parallel.zero=3");
    EXPECT_EQ(run(3, 1, keys), ledgers.back());
  }
  EXPECT_NE(ledgers[0], ledgers[1]) << "control";
}

// Recomputed activations are bit-identical to kept ones.
TEST_F(Ledger, IsIdenticalForEveryLevelOfRecomputation) {
  const std::vector<std::string> base = {"precision.compute=bf16", "batch.global=6"};
  const std::string expected = run(1, 1, base);
  int stage = 0;
  for (const char* level : {"activation", "attention", "block"}) {
    for (const int ranks : {1, 2, 3}) {
      std::vector<std::string> all = base;
      all.push_back("memory.recompute=" + std::string(level));
      all.push_back("parallel.zero=" + std::to_string(++stage % 4));
      EXPECT_EQ(run(ranks, 1, all), expected) << level << ", " << ranks << " ranks, stage " << stage % 4;
    }
  }
}

// Their kernels differ, and are divided among threads and ranks differently.
TEST_F(Ledger, IsIdenticalOnLesserProcessors) {
  using Lesser = std::pair<const char*, const char*>;
  for (const auto& [most, beyond] : {Lesser("AVX2", "AVX-512|AMX"), Lesser("AVX512_CORE", "(AVX-512|AMX) bf16")}) {
    environment = "ONEDNN_MAX_CPU_ISA=" + std::string(most);
    for (const char* compute : {"precision.compute=fp32", "precision.compute=bf16"}) {
      const std::string expected = run(1, 2, {compute});
      const std::string log = read_file(folder / ("run" + std::to_string(runs) + "/log.txt"));
      EXPECT_THAT(log, AllOf(HasSubstr("\ndevice"), Not(ContainsRegex(beyond)))) << "control: " << most;
      EXPECT_EQ(run(2, 1, {compute}), expected) << most << ", " << compute;
    }
  }
}

// Divided blocks, a backward pass that ends early, checkpoints that hold a part, and frozen weights in shards.
TEST_F(Ledger, IsIdenticalForFreezeTuning) {
  const std::vector<std::string> freeze = {
      "run.finetuning=freeze",    "freeze.trainable_layers=2", "freeze.trainable_modules=mlp,ln_1",
      "freeze.extra_modules=wpe", "precision.compute=bf16",    "evaluation.at_end=false",
      "checkpoint.every_steps=3"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), freeze.begin(), freeze.end());
    return more;
  };
  const std::string expected = run(1, 1, freeze);
  EXPECT_THAT(read_file(folder / "run1/log.txt"), ContainsRegex("[0-9,]+ of them trained"));
  EXPECT_EQ(run(1, 2, with({"parallel.zero=3", "memory.recompute=block"})), expected);
  for (const auto& [ranks, stage] : {std::pair(2, 0), {2, 1}, {3, 2}, {2, 3}, {3, 3}}) {
    EXPECT_EQ(run(ranks, 1, with({"parallel.zero=" + std::to_string(stage)})), expected) << ranks << " " << stage;
  }
  const std::string resumed = "run" + std::to_string(runs + 1);
  run(2, 1, with({"run.max_steps=3", "parallel.zero=3"}));
  const std::string cache = "data.cache=" + (folder / "cache").string();
  const Outcome rest = llmtrain({3, 1, arguments(resumed, with({cache, "parallel.zero=2"})), "", ""});
  EXPECT_EQ(rest.exit_code, 0) << rest.output;
  EXPECT_EQ(ledger(resumed), expected) << "resumed on other ranks";
  std::vector<std::string> other = freeze;
  other[3] = "freeze.extra_modules=none";
  EXPECT_NE(run(1, 1, other), expected);
  other[0] = "run.finetuning=full";
  EXPECT_NE(run(1, 1, other), expected);
}

// Along the tree: 16 layouts that have every pair of ranks, ranks of a node, ZeRO stage and accumulation.
TEST_F(Ledger, IsIdenticalAlongATree) {
  constexpr std::array<int, 4> ranks = {1, 2, 3, 4}, ranks_of_a_node = {4, 1, 2, 3}, accumulation = {1, 4, 5, 8};
  constexpr std::array<size_t, 4> doubled = {0, 2, 3, 1};  // in the field of four elements, where ^ adds
  const auto keys = [&](int micro_batches, int stage) {
    return std::vector<std::string>{"precision.compute=fp32", "run.max_steps=4", "parallel.reduction=tree",
                                    "batch.global=" + std::to_string(2 * micro_batches),
                                    "parallel.zero=" + std::to_string(stage)};
  };
  std::array<std::string, 4> expected;
  for (size_t k = 0; k < 4; ++k) expected[k] = run(1, 1, keys(accumulation[k], 1));
  for (size_t i = 0; i < 4; ++i) {
    for (size_t j = 0; j < 4; ++j) {
      const size_t k = i ^ doubled[j];
      environment = "LLMTRAIN_RANKS_PER_NODE=" + std::to_string(ranks_of_a_node[i ^ j]);
      EXPECT_EQ(run(ranks[i], 1, keys(accumulation[k], static_cast<int>(j))), expected[k])
          << ranks[i] << " ranks, " << environment << ", stage " << j << ", accumulation " << accumulation[k];
    }
  }
  // A run goes on with other ranks, nodes and stages, and in its order alone.
  const std::string resumed = "run" + std::to_string(runs + 1);
  std::vector<std::string> part = keys(8, 1);
  part[1] = "run.max_steps=2";
  part.push_back("evaluation.at_end=false");
  environment = "LLMTRAIN_RANKS_PER_NODE=2";
  run(3, 1, part);
  const auto go_on = [&](std::vector<std::string> rest) {
    rest.push_back("data.cache=" + (folder / "cache").string());
    return llmtrain({4, 1, arguments(resumed, rest), "", environment});
  };
  std::vector<std::string> other = keys(8, 2);
  other[2] = "parallel.reduction=ordered";
  const Outcome refused = go_on(other);
  EXPECT_EQ(refused.exit_code, 73) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("parallel.reduction: tree there, ordered here"));
  const Outcome rest = go_on(keys(8, 2));
  EXPECT_EQ(rest.exit_code, 0) << rest.output;
  EXPECT_EQ(ledger(resumed), expected[3]);
  environment.clear();
  EXPECT_NE(run(2, 1, other), expected[3]) << "the control";
}

TEST_F(Ledger, DiffersWhereTheMathematicsDiffers) {
  const std::string base = run(1, 1, {"precision.compute=fp32", "batch.global=12"});
  EXPECT_EQ(run(1, 1, {"precision.compute=fp32", "batch.global=12"}), base);
  EXPECT_NE(run(1, 1, {"precision.compute=fp32", "batch.global=12", "run.seed=43"}), base);
  EXPECT_NE(run(1, 1, {"precision.compute=fp32", "batch.global=12", "parallel.reduction_groups=3"}), base)
      << "sums in another order";
  EXPECT_NE(run(1, 1, {"precision.compute=fp32", "batch.global=12", "parallel.reduction_blocks=2"}), base);
  EXPECT_NE(run(1, 1, {"precision.compute=bf16", "batch.global=12"}), base);
  EXPECT_NE(run(1, 1, {"precision.compute=fp32", "batch.global=12", "optimizer.epsilon=1.0000001e-8"}), base)
      << "the smallest change of the update shows in the parameters' hash";
}

}  // namespace
}  // namespace llmtrain::test
