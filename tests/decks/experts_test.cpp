// Mixtures of experts in whole runs: the ledger is the same for every layout, losses of routers add to the loss, and
// rollouts are on policy to the last bit.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "decks/run_folder.hpp"

namespace llmtrain::test {
namespace {

using nlohmann::json;

/// Grouped queries, dropout, accumulation, documents of different lengths, a short last step of an epoch, and both
/// losses of routers.
constexpr const char* deck = R"([run]
max_steps = 3
output = FOLDER
[model]
family = mixtral
d_model = 32
n_layers = 2
n_heads = 4
n_kv_heads = 2
d_ff_expert = 24
n_experts = 4
experts_per_token = 2
initializer_std = 0.1
dropout = 0.1
[objective]
router_aux = 0.01
router_z_loss = 0.001
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
[precision]
compute = bf16
[log]
parameter_hash_every_steps = 1
[checkpoint]
at_end = false
)";

std::vector<std::string> with(std::vector<std::string> keys, const std::vector<std::string>& more) {
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

double hex(const json& text) { return std::strtod(text.get<std::string>().c_str(), nullptr); }

/// A value of every step of a ledger: the loss, or a metric.
std::vector<double> values(const std::string& ledger, const std::string& name) {
  std::vector<double> found;
  std::istringstream lines(ledger);
  for (std::string line; std::getline(lines, line);) {
    const json step = json::parse(line);
    if (name == "loss" && step.contains("loss")) found.push_back(hex(step["loss"]));
    if (step.contains("metrics") && step["metrics"].contains(name)) found.push_back(hex(step["metrics"][name]));
  }
  return found;
}

class ExpertsDeck : public RunFolder {
 protected:
  ExpertsDeck() : RunFolder(text_of_documents(60), deck) {}

  /// `nodes`: of which the ranks pretend to be; each has as many.
  Outcome run(const std::string& name, int ranks, std::vector<std::string> keys, int threads = 1, int nodes = 1) {
    keys.push_back("data.cache=" + (folder / "cache").string());
    return llmtrain(
        {ranks, threads, arguments(name, keys), "", fmt::format("LLMTRAIN_RANKS_PER_NODE={}", ranks / nodes)});
  }
  /// The ledger of one run, or the output if it failed.
  std::string ledger_of(int ranks, const std::vector<std::string>& keys, int threads = 1, int nodes = 1) {
    const std::string name = "run" + std::to_string(++runs);
    const Outcome outcome = run(name, ranks, keys, threads, nodes);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.exit_code == 0 ? ledger(name) : outcome.output + name;
  }
  /// The ledger of a run of another deck, whose path the keys begin with.
  std::string ledger_of_deck(int ranks, std::vector<std::string> keys) {
    const std::string name = "run" + std::to_string(++runs);
    keys.push_back("run.name=" + name);
    const Outcome outcome = llmtrain({ranks, 1, keys, "", ""});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.exit_code == 0 ? ledger(name) : outcome.output + name;
  }

  static std::string file(const std::string& name) { return (source_folder() / "tests/reference" / name).string(); }
  /// Writes a model with random experts and the tokenizer of a chat model; returns its folder.
  std::string model_with_tokenizer(const std::string& name = "model", const std::string& key = "run.seed=42") {
    const Outcome outcome =
        run(name, 1,
            {"run.max_steps=1", "schedule.learning_rate=1e-30", "data.tokenizer=" + file("sft/model"),
             "batch.sequence_length=64", "batch.global=2", "model.max_seq_len=512", "model.dropout=0",
             "evaluation.every_steps=0", "evaluation.at_end=false", "checkpoint.export=last", key});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return (folder / name / "export").string();
  }
  std::string deck_of(const std::string& task, const std::string& model, const std::string& sections) {
    std::string path = (folder / (task + ".ini")).string();
    write_file(path, "[run]\ntask = " + task + "\nmax_steps = 3\noutput = " + folder.text() +
                         "\n[model]\npath = " + model + "\n[data]\ntrain = " + file("preference/texts.jsonl") +
                         "\nvalidation_fraction = 0\n[batch]\nsequence_length = 64\nmicro = 2\nglobal = 8\n"
                         "[schedule]\nlearning_rate = 1e-3\n[checkpoint]\nat_end = false\n" +
                         sections);
    return path;
  }

  int runs = 0;
};

TEST_F(ExpertsDeck, HasOneLedgerForAllLayouts) {
  const std::string expected = ledger_of(1, {"parallel.zero=0"});
  EXPECT_EQ(ledger_of(2, {"parallel.zero=1"}), expected);
  EXPECT_EQ(ledger_of(4, {"parallel.zero=2", "memory.recompute=activation"}), expected);
  EXPECT_EQ(ledger_of(3, {"parallel.zero=3", "memory.recompute=block"}), expected);
  EXPECT_EQ(ledger_of(1, {"memory.recompute=block"}, 2), expected);
  EXPECT_NE(ledger_of(1, {"objective.router_aux=0.02"}), expected) << "control";
  EXPECT_NE(ledger_of(1, {"objective.router_z_loss=0"}), expected) << "control";
  EXPECT_NE(ledger_of(1, {"model.experts_per_token=1"}), expected) << "control";
}

// Ranks of a tensor axis have whole experts; those of a context axis have rows, whose router statistics they add.
TEST_F(ExpertsDeck, HasOneLedgerForAllMeshes) {
  const std::vector<std::string> blocks = {"parallel.context_blocks=2", "parallel.tensor_blocks=2"};
  const std::string expected = ledger_of(1, blocks);
  EXPECT_EQ(ledger_of(4, with(blocks, {"parallel.context=2", "parallel.tensor=2", "parallel.zero=3"})), expected);
  EXPECT_EQ(ledger_of(4, with(blocks, {"parallel.tensor=2", "parallel.zero=2", "memory.recompute=block"})), expected);
  const std::vector<std::string> experts = with(blocks, {"parallel.tensor=2", "parallel.expert=2"});
  EXPECT_EQ(ledger_of(4, with(experts, {"parallel.zero=3", "memory.recompute=block"})), expected);
  EXPECT_EQ(ledger_of(4, with(experts, {"parallel.context=2", "parallel.zero=0"})), expected);
  EXPECT_EQ(ledger_of(2, with(blocks, {"parallel.context=2", "parallel.zero=1"})), expected);
  EXPECT_NE(ledger_of(1, {"parallel.context_blocks=2"}), expected) << "control: matrices in one block";
}

// Blocks of heads stop for sums over all of them: of norms over all heads, and of gradients of latent vectors.
TEST_F(ExpertsDeck, HeadsInPhasesHaveOneLedgerForAllMeshes) {
  const std::vector<std::string> latent = {
      "model.kv_lora_rank=16", "model.qk_nope_head_dim=8", "model.qk_rope_head_dim=8", "model.v_head_dim=8",
      "model.d_ff=40",         "model.d_ff_shared=16",     "model.n_kv_heads=4",       "model.family=deepseek_v2"};
  for (const std::vector<std::string>& family : {std::vector<std::string>{"model.family=olmoe"}, latent}) {
    const std::vector<std::string> keys =
        with(family, {"run.max_steps=2", "parallel.context_blocks=2", "parallel.tensor_blocks=2"});
    const std::string expected = ledger_of(1, keys);
    EXPECT_EQ(ledger_of(2, with(keys, {"parallel.tensor=2", "parallel.zero=3", "memory.recompute=block"})), expected);
    EXPECT_EQ(ledger_of(4, with(keys, {"parallel.tensor=2", "parallel.context=2", "parallel.expert=2",
                                       "memory.recompute=attention"})),
              expected);
    EXPECT_NE(ledger_of(1, with(family, {"run.max_steps=2", "parallel.context_blocks=2"})), expected) << "control";
  }
}

// The slope of a sink is of the rows of a block, whose heads' sums of exponentials are on other ranks.
TEST_F(ExpertsDeck, SinksHaveOneLedgerForAllMeshes) {
  const std::vector<std::string> gathered = {"model.family=gpt_oss", "parallel.context_blocks=4", "run.max_steps=2"};
  const std::string expected = ledger_of(1, gathered);
  EXPECT_EQ(ledger_of(2, with(gathered, {"parallel.context=2", "parallel.zero=3", "memory.recompute=block"})),
            expected);
  EXPECT_EQ(ledger_of(4, with(gathered, {"parallel.context=4", "memory.recompute=attention"})), expected);
  EXPECT_NE(ledger_of(1, with(gathered, {"model.attention_sinks=false"})), expected) << "control";
  const std::vector<std::string> ulysses = {"model.family=gpt_oss", "parallel.context_blocks=2", "run.max_steps=2"};
  EXPECT_EQ(ledger_of(2, with(ulysses, {"parallel.context=2"})), ledger_of(1, ulysses));
}

// Rows go to the ranks that have their experts, and ranks without rows of their own have experts for those of others.
TEST_F(ExpertsDeck, RanksThatShareExpertsHaveOneLedger) {
  const std::string expected = ledger_of(1, {});
  EXPECT_EQ(ledger_of(2, {"parallel.expert=2", "parallel.zero=0"}), expected);
  EXPECT_EQ(ledger_of(4, {"parallel.expert=2", "parallel.zero=3", "memory.recompute=block"}), expected);
  EXPECT_EQ(ledger_of(4, {"parallel.expert=4", "parallel.zero=2"}, 2), expected);
  const std::vector<std::string> groups = {"parallel.reduction=tree", "parallel.reduction_groups=3"};
  EXPECT_EQ(ledger_of(4, with(groups, {"parallel.expert=2"})), ledger_of(1, groups));
  const std::vector<std::string> rows = {"parallel.context_blocks=2", "parallel.reduction=tree"};
  EXPECT_EQ(ledger_of(4, with(rows, {"parallel.context=2", "parallel.expert=4", "parallel.zero=1"})),
            ledger_of(1, rows));
}

// Rows cross the border of a node once, to a rank that sends them on; runs of experts end where too many rows would.
TEST_F(ExpertsDeck, NodesThatShareExpertsHaveOneLedger) {
  const std::vector<std::string> many = {"model.n_experts=16", "model.experts_per_token=5", "run.max_steps=2"};
  const std::string expected = ledger_of(1, many);
  EXPECT_EQ(ledger_of(4, with(many, {"parallel.expert=4", "parallel.zero=3"}), 1, 2), expected);
  const std::vector<std::string> rows = with(many, {"parallel.context_blocks=2", "parallel.tensor_blocks=2"});
  EXPECT_EQ(ledger_of(8, with(rows, {"parallel.context=2", "parallel.tensor=2", "parallel.expert=4"}), 1, 2),
            ledger_of(1, rows));
  EXPECT_NE(ledger_of(1, with(many, {"model.experts_per_token=4"})), expected) << "control";
}

// Dense layers between those with experts, a shared expert with a gate, and more experts than some batches choose.
TEST_F(ExpertsDeck, OfOtherFamiliesHasOneLedger) {
  for (const std::vector<std::string>& family :
       {std::vector<std::string>{"model.family=qwen2_moe", "model.n_experts=4", "model.d_ff=40", "model.d_ff_shared=16",
                                 "model.expert_every=2"},
        {"model.family=qwen3_moe", "model.n_experts=16", "model.n_layers=3", "model.dense_layers=1", "model.d_ff=40"},
        {"model.family=olmoe", "model.experts_per_token=3"}}) {
    const std::vector<std::string> keys = with(family, {"run.max_steps=2"});
    const std::string expected = ledger_of(1, keys);
    EXPECT_EQ(ledger_of(2, with(keys, {"parallel.zero=3", "memory.recompute=block"})), expected) << family.front();
  }
}

TEST_F(ExpertsDeck, ResumesOnOtherRanks) {
  const std::vector<std::string> keys = {"parallel.tensor_blocks=2", "evaluation.every_steps=0",
                                         "evaluation.at_end=false", "checkpoint.at_end=true", "checkpoint.export=last"};
  const std::string expected = ledger_of(1, keys);
  const auto go_on = [&](int ranks, const std::vector<std::string>& more) {
    const Outcome outcome = run("moved", ranks, with(keys, more));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  };
  go_on(2, {"run.max_steps=1", "parallel.tensor=2", "parallel.zero=3"});
  go_on(4, {"run.max_steps=2", "parallel.tensor=2", "parallel.expert=2", "parallel.zero=2"});
  go_on(1, {});
  EXPECT_EQ(ledger("moved"), expected);
  EXPECT_EQ(read_file(folder / "moved/export/model.safetensors"), read_file(folder / "run1/export/model.safetensors"));
}

TEST_F(ExpertsDeck, ResumesOnRanksThatShareExperts) {
  const std::vector<std::string> keys = {"evaluation.every_steps=0", "evaluation.at_end=false",
                                         "checkpoint.at_end=true", "checkpoint.export=last"};
  const std::string expected = ledger_of(1, keys);
  const auto resume = [&](int ranks, const std::vector<std::string>& more) {
    const Outcome outcome = run("moved", ranks, with(keys, more));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  };
  resume(4, {"run.max_steps=1", "parallel.expert=2", "parallel.zero=3"});
  resume(1, {"run.max_steps=2"});
  resume(2, {"parallel.expert=2", "parallel.zero=2"});
  EXPECT_EQ(ledger("moved"), expected);
  EXPECT_EQ(read_file(folder / "moved/export/model.safetensors"), read_file(folder / "run1/export/model.safetensors"));
}

// The first step has the same weights whatever the coefficients are.
TEST_F(ExpertsDeck, LossesOfRoutersAddToTheLoss) {
  const auto first = [&](const std::string& aux, const std::string& z, const char* name) {
    const std::string found =
        ledger_of(1, {"run.max_steps=1", "objective.router_aux=" + aux, "objective.router_z_loss=" + z});
    return values(found, name).at(0);
  };
  const double plain = first("0", "0", "loss");
  const double balance = first("0", "0", "experts/balance_loss"), z = first("0", "0", "experts/z_loss");
  EXPECT_GE(balance, 2 * (1 - 1e-3)) << "experts_per_token with equal loads";
  EXPECT_GT(z, std::log(3.0) * std::log(3.0)) << "four experts with logits near 0";
  EXPECT_NEAR(first("0.5", "0.25", "loss"), plain + 0.5 * balance + 0.25 * z, 1e-9);
  EXPECT_GT(std::abs(first("0.5", "0", "loss") - first("0", "0.25", "loss")), 0.1) << "control";
}

TEST_F(ExpertsDeck, AdaptersOfExpertsHaveOneLedger) {
  std::string rows;
  for (int row = 0; row < 24; ++row) {
    rows += "{\"input_ids\": [3";
    for (int i = 0; i < 12 + row % 5; ++i) rows += fmt::format(", {}", 3 + (7 * i * i + 3 * row) % 38);
    rows += "]}\n";
  }
  write_file(folder / "rows.jsonl", rows);
  const std::string path = (folder / "lora.ini").string();
  write_file(path, fmt::format("[run]\noutput = {0}\nmax_steps = 2\nfinetuning = lora\n[model]\npath = {1}\n[lora]\n"
                               "r = 2\n[data]\ntrain = {0}/rows.jsonl\npacking = none\nvalidation_fraction = 0.2\n"
                               "[batch]\nsequence_length = 24\nmicro = 2\nglobal = 4\n[schedule]\n"
                               "learning_rate = 0.01\n[checkpoint]\nat_end = false\n",
                               folder.text(), file("hf/mixtral")));
  const std::vector<std::string> keys = {path, "lora.target_modules=q_proj, w1, w2, w3"};
  const std::string expected = ledger_of_deck(1, keys);
  EXPECT_EQ(ledger_of_deck(2, with(keys, {"parallel.zero=3", "memory.recompute=block"})), expected);
  EXPECT_NE(ledger_of_deck(1, {path, "lora.target_modules=q_proj"}), expected) << "control: none on experts";
  // Adapters of some experts alone, which differ from each other.
  const std::vector<std::string> some = {path, "lora.target_modules=.*experts\\.1\\.w[12]", "lora.dropout=0.5",
                                         "lora.rank_pattern=experts.1.w2:600"};
  EXPECT_EQ(ledger_of_deck(2, some), ledger_of_deck(1, some));
  const std::vector<std::string> alike = {path, "lora.target_modules=.*experts\\.[13]\\.w[12]", "lora.dropout=0.5"};
  EXPECT_EQ(ledger_of_deck(2, with(alike, {"parallel.expert=2"})), ledger_of_deck(1, alike));
  const Outcome refused = llmtrain({2, 1, with(some, {"parallel.expert=2"}), "", ""});
  EXPECT_EQ(refused.exit_code, 78);
  EXPECT_THAT(refused.output, testing::HasSubstr("parallel.expert: the ranks would train different matrices"));
}

TEST_F(ExpertsDeck, PreferencesHaveOneLedger) {
  const std::string path = deck_of("dpo", model_with_tokenizer(), "");
  const std::string expected = ledger_of_deck(1, {path, "run.max_steps=2"});
  EXPECT_EQ(ledger_of_deck(2, {path, "run.max_steps=2", "parallel.zero=3", "parallel.expert=2"}), expected);
  EXPECT_NE(ledger_of_deck(1, {path, "run.max_steps=2", "objective.router_aux=0.1"}), expected) << "control";
  // A reference with another number of experts has blocks of its own.
  const std::vector<std::string> other = {path, "run.max_steps=1",
                                          "dpo.reference=" + model_with_tokenizer("reference", "model.n_experts=6")};
  EXPECT_EQ(ledger_of_deck(2, with(other, {"parallel.expert=2"})), ledger_of_deck(1, other));
}

// A token's experts do not depend on the other texts that are generated, nor on a cache. The second epoch, whose policy
// is another one, is the control.
TEST_F(ExpertsDeck, RolloutsAreOnPolicyToTheLastBit) {
  const std::string path = deck_of("grpo", model_with_tokenizer(),
                                   "[rollout]\nmax_new_tokens = 9\n[grpo]\ngroup_size = 4\nepochs = 2\n[rewards]\n"
                                   "functions = regex:s\n");
  const std::string expected = ledger_of_deck(1, {path});
  const std::vector<double> mismatch = values(expected, "rollout/mismatch");
  ASSERT_EQ(mismatch.size(), 3U);
  EXPECT_EQ(mismatch[0], 0);
  EXPECT_GT(mismatch[1], 0) << "control";
  EXPECT_EQ(mismatch[2], 0);
  EXPECT_EQ(ledger_of_deck(2, {path, "parallel.zero=2", "parallel.expert=2"}), expected);
}

}  // namespace
}  // namespace llmtrain::test
