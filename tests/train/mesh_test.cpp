// Which meshes fit a deck and the ranks of a job, and which one is proposed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "tasks/estimate/estimation.hpp"
#include "train/config/load_config.hpp"
#include "train/config/mesh_checks.hpp"

namespace llmtrain {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view text =
    "[run]\nmax_steps = 10\n[model]\nfamily = llama\nd_model = 96\nn_layers = 2\nn_heads = 12\nn_kv_heads = 4\n"
    "d_ff = 256\n[data]\ntrain = builtin:stories\n[batch]\nsequence_length = 32\nglobal = 8\n"
    "[parallel]\nreduction = tree\n";

Config load(const std::vector<std::string>& arguments) { return load_config(text, "inputs/tiny.ini", arguments); }

std::string refusal(const std::vector<std::string>& arguments) {
  try {
    load(arguments);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::deck);
    return error.what();
  }
  return "";
}

TEST(MeshOfADeck, IsRefusedWithNumbersThatFit) {
  EXPECT_EQ(refusal({"parallel.context=4"}), "");
  EXPECT_EQ(refusal({"parallel.context=1", "parallel.context_blocks=2", "parallel.tensor=2"}), "");
  EXPECT_THAT(refusal({"parallel.context=3"}),
              HasSubstr("command line: parallel.context: 3 is not a power of two: 1, 2 or 4 fit"));
  EXPECT_THAT(refusal({"parallel.context=2", "parallel.context_blocks=6"}),
              HasSubstr("command line: parallel.context_blocks: 6 is not a power of two: 1, 2 or 4 fit"));
  EXPECT_THAT(refusal({"parallel.context=4", "parallel.context_blocks=2"}),
              HasSubstr("command line: parallel.context: 4 ranks do not divide 2 blocks: 2 fits"));
  EXPECT_THAT(refusal({"parallel.tensor=3", "parallel.tensor_blocks=4"}),
              HasSubstr("command line: parallel.tensor: 3 ranks do not divide 4 blocks: 2 fits"));
  EXPECT_THAT(
      refusal({"parallel.context=8"}),
      HasSubstr("command line: parallel.context: 8 blocks of rows do not divide the model's 12 heads with 4 key "
                "heads: 1, 2 or 4 fit"));
  EXPECT_THAT(
      refusal({"parallel.context=4", "parallel.tensor_blocks=2"}),
      HasSubstr("4 blocks of rows do not divide the model's 6 heads with 2 key heads of a tensor block: 1 or 2 fit"));
  EXPECT_EQ(refusal({"parallel.context=4", "model.n_kv_heads=2"}), "") << "keys are gathered";
  EXPECT_EQ(refusal({"parallel.tensor=4", "model.attention_sinks=true"}), "");
  EXPECT_EQ(refusal({"parallel.context=4", "model.attention_sinks=true"}), "");
  EXPECT_EQ(refusal({"parallel.tensor=4", "model.qk_norm=true", "model.qk_norm_whole=true"}), "");
  EXPECT_THAT(refusal({"parallel.context=4", "model.n_kv_heads=2", "parallel.context_method=ulysses"}),
              HasSubstr("12 heads with 2 key heads by ulysses: 1 or 2 fit"));
  EXPECT_THAT(
      refusal({"parallel.tensor=8"}),
      HasSubstr("command line: parallel.tensor: 8 blocks do not divide the model's 12 heads, 4 key heads and d_ff = "
                "256: 1, 2 or 4 fit"));
  EXPECT_THAT(
      refusal({"parallel.context_blocks=64", "model.n_heads=64", "model.n_kv_heads=64", "model.head_dim=2"}),
      HasSubstr(
          "parallel.context_blocks: 64 blocks are more than the 32 tokens of a sequence: 1, 2, 4, 8, 16 or 32 fit"));
  EXPECT_THAT(refusal({"parallel.context=2", "parallel.reduction_groups=4"}),
              HasSubstr("parallel.reduction_groups: with blocks of rows every micro-batch is a group"));
}

std::vector<std::string> with_experts(std::vector<std::string> keys) {
  keys.insert(keys.end(), {"model.family=mixtral", "model.n_experts=8", "model.d_ff_expert=32"});
  return keys;
}

TEST(MeshOfADeck, RefusesRanksThatShareNoWholeExperts) {
  EXPECT_EQ(refusal(with_experts({"parallel.expert=4", "parallel.tensor=2"})), "");
  EXPECT_THAT(refusal(with_experts({"parallel.expert=16"})),
              HasSubstr("parallel.expert: 16 ranks do not divide the model's 8 experts: 1, 2, 4 or 8 fit"));
  EXPECT_THAT(
      refusal(with_experts({"parallel.expert=8", "parallel.tensor_blocks=2"})),
      HasSubstr("parallel.expert: 8 ranks do not divide the model's 4 experts of a tensor block: 1, 2 or 4 fit"));
}

/// Ranks of the job, and of each node.
std::string refusal(const Config& config, int64_t ranks, int64_t ranks_per_node) {
  std::string what;
  try {
    require_mesh(config, ranks, ranks_per_node);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::deck);
    what = error.what();
  }
  EXPECT_EQ(what.empty(), !find_mesh_problem(config, ranks, ranks_per_node)) << what;
  return what;
}

TEST(MeshOfAJob, IsRefusedWithNumbersThatFit) {
  const Config context = load({"parallel.context=4"}), tensor = load({"parallel.tensor=2"});
  const Config both = load({"parallel.context=2", "parallel.tensor=2"});
  EXPECT_EQ(refusal(load({}), 7, 2), "");
  EXPECT_EQ(refusal(context, 8, 2), "") << "ranks of several nodes may share rows";
  EXPECT_EQ(refusal(tensor, 6, 2), "");
  EXPECT_EQ(refusal(both, 8, 4), "");
  EXPECT_EQ(refusal(context, 6, 6),
            "command line: parallel.context: 6 ranks are not a multiple of 4: start 4 or 8 ranks, or set context: 1 "
            "or 2 fit");
  EXPECT_THAT(refusal(context, 3, 3),
              HasSubstr("3 ranks are not a multiple of 4: start 4 ranks, or set context: 1 fits"));
  EXPECT_THAT(refusal(both, 6, 6), HasSubstr("6 ranks are not a multiple of 4 (context 2 x tensor 2): start 4 or 8"));
  EXPECT_THAT(refusal(tensor, 9, 9), HasSubstr("parallel.tensor: 9 ranks are not a multiple of 2: start 8 or 10"));
  EXPECT_THAT(refusal(tensor, 6, 3), HasSubstr("lie in one node, but a node has 3 ranks: 1 fits"));
  EXPECT_THAT(refusal(tensor, 4, 0), HasSubstr("ranks are not numbered node by node"));
  const Config experts = load(with_experts({"parallel.expert=2", "parallel.tensor=2"}));
  EXPECT_EQ(refusal(experts, 8, 4), "");
  EXPECT_EQ(refusal(experts, 6, 6),
            "command line: parallel.expert: 6 ranks are not a multiple of 4 (expert 2 x tensor 2): start 4 or 8 ranks, "
            "or set expert: 1 fits");
}

/// A step of 100 s on one rank: ranks that share rows divide it, and each further one adds some time.
MeshCost cost_of(const Config& config, int64_t ranks, int64_t memory) {
  const auto context = static_cast<double>(config.parallel.context),
             level = static_cast<double>(config.memory.recompute);
  const double data = std::min(static_cast<double>(ranks) / context, 2.0);  // micro-batches
  MeshCost cost;
  cost.rank_bytes = 1000 / config.parallel.context - 100 * static_cast<int64_t>(level) - 10 * config.parallel.zero;
  cost.fits = cost.rank_bytes <= memory;
  cost.step_seconds = 100 / (data * context) + 2 * context + level + 0.1 * static_cast<double>(config.parallel.zero);
  return cost;
}

MeshChoice proposal(int64_t ranks, int64_t memory, const std::vector<std::string>& arguments = {}) {
  return propose_mesh(load(arguments), ranks, ranks,
                      [&](const Config& config) { return cost_of(config, ranks, memory); });
}

TEST(MeshProposal, IsTheFastestThatFits) {
  const MeshChoice two = proposal(2, 2000);
  EXPECT_EQ(two.settings(),
            "parallel.context=1 parallel.tensor=1 parallel.zero=1 parallel.reduction=tree memory.recompute=none");
  EXPECT_TRUE(two.cost.fits);
  EXPECT_EQ(two.mesh.data(), 2);
  EXPECT_EQ(proposal(8, 2000).mesh.context, 4) << "eight do not divide the heads";
  EXPECT_EQ(proposal(6, 2000).mesh.context, 2) << "a divisor of the ranks";
  EXPECT_EQ(proposal(8, 2000, {"parallel.context_blocks=2"}).mesh.context, 2) << "blocks of the deck stay";
}

/// Meshes that are tried for 8 ranks of nodes of two.
std::vector<ParallelConfig> tried(const Config& config) {
  std::vector<ParallelConfig> all;
  propose_mesh(config, 8, 2, [&](const Config& deck) {
    all.push_back(deck.parallel);
    return MeshCost{};
  });
  return all;
}

TEST(MeshProposal, KeepsWhatTheDeckGives) {
  for (const ParallelConfig& p : tried(load({"parallel.reduction=ordered"})))
    EXPECT_EQ(p.reduction, Reduction::ordered);
  for (const ParallelConfig& p : tried(load({"parallel.zero=3", "parallel.offload_parameters=cpu"})))
    EXPECT_EQ(p.zero, 3);
  Config config = load({});
  config.source.reference.emplace().model = config.model;
  config.source.reference->model.n_heads = config.source.reference->model.n_kv_heads = 3;
  for (const ParallelConfig& p : tried(config)) EXPECT_EQ(p.context * p.tensor, 1) << "the reference has three heads";
  EXPECT_GT(tried(load({})).size(), 3u) << "control";
}

TEST(MeshProposal, TakesTimeForMemory) {
  const MeshChoice shared = proposal(2, 500);
  EXPECT_EQ(shared.mesh.context, 2);
  const MeshChoice recomputed = proposal(1, 700);
  EXPECT_EQ(recomputed.recompute, Recompute::block);
  EXPECT_EQ(recomputed.zero, 1);
  EXPECT_EQ(proposal(1, 675).zero, 3);
  const MeshChoice none = proposal(2, 100);
  EXPECT_FALSE(none.cost.fits);
  EXPECT_EQ(none.cost.rank_bytes, 1000 / 2 - 300 - 30) << "the mesh of least memory";
}

}  // namespace
}  // namespace llmtrain
