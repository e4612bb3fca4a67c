// memory.recompute in numbers: bytes that each level keeps, compared with formulas written here.

#include <gtest/gtest.h>

#include "layers/memory_config.hpp"
#include "models/models.hpp"

namespace llmtrain::test {
namespace {

constexpr int64_t n = 256;  ///< tokens

/// GPT-2 124M, or a Llama with grouped keys whose width is not a multiple of the alignment.
ModelConfig model(ModelConfig::Family family) {
  ModelConfig c;
  c.family = family;
  c.vocab_size = 1000;
  c.max_seq_len = 1024;
  c.n_layers = 3;
  const bool gpt2 = family == ModelConfig::Family::gpt2;
  c.d_model = gpt2 ? 768 : 60;
  c.n_heads = gpt2 ? 12 : 6;
  c.n_kv_heads = gpt2 ? 12 : 2;
  c.head_dim = gpt2 ? 64 : 10;
  c.d_ff = gpt2 ? 3072 : 162;
  c.norm = gpt2 ? ModelConfig::Norm::layernorm : ModelConfig::Norm::rmsnorm;
  c.activation = gpt2 ? ModelConfig::Activation::gelu_tanh : ModelConfig::Activation::swiglu;
  c.positions = gpt2 ? ModelConfig::Positions::learned : ModelConfig::Positions::rope;
  return c;
}

struct Plan {
  int64_t blocks = 0;   ///< bytes that the blocks keep
  int64_t scratch = 0;  ///< bytes
};

Plan planned(const ModelConfig& c, DType compute, Recompute level) {
  const auto m = make_model(c, c.vocab_size);
  Arena arena;
  m->plan(arena, {compute, n, true, level});
  Plan plan;
  int64_t all = 0;
  for (const Arena::Request& r : arena.requests()) {
    all += r.bytes;
    if (r.name.starts_with("block.")) plan.blocks += r.bytes;
  }
  plan.scratch = arena.bytes() - arena.workspace().bytes() - all;
  return plan;
}

/// Elements per token.
int64_t kept(const ModelConfig& c, int64_t e, Recompute level) {
  const int64_t hidden = c.gated() ? 2 * c.d_ff : c.d_ff;
  const int64_t statistics = c.norm == ModelConfig::Norm::layernorm ? 4 : 2;  // of two norms
  const int64_t heads = (c.n_heads + 2 * c.n_kv_heads) * c.head_dim;
  int64_t bytes = 4 * c.d_model + 4 * statistics;                     // the block's input
  if (level < Recompute::block) bytes += e * c.d_model + e * hidden;  // what attention adds to it; fp32: the sum
  if (level < Recompute::attention) bytes += e * (heads + c.n_heads * c.head_dim) + 4 * c.n_heads;
  if (level < Recompute::activation) bytes += e * c.d_ff;
  return bytes;
}

TEST(RecomputePlan, KeepsWhatTheFormulaSays) {
  for (const auto family : {ModelConfig::Family::gpt2, ModelConfig::Family::llama}) {
    const ModelConfig c = model(family);
    for (const DType compute : {DType::f32, DType::bf16}) {
      const auto e = static_cast<int64_t>(size_of(compute));
      int64_t before = INT64_MAX, none = 0;
      for (const Recompute level : {Recompute::none, Recompute::activation, Recompute::attention, Recompute::block}) {
        const Plan plan = planned(c, compute, level);
        EXPECT_EQ(plan.blocks, c.n_layers * n * kept(c, e, level)) << name_of(level);
        EXPECT_LT(plan.blocks, before) << name_of(level);
        before = plan.blocks;
        if (level == Recompute::none) none = plan.scratch;
        // Scratch grows by the bytes that one block drops, unless the head's logits need more.
        const int64_t dropped = n * (kept(c, e, Recompute::none) - kept(c, e, level));
        EXPECT_GE(plan.scratch, none);
        EXPECT_LE(plan.scratch, none + dropped) << name_of(level);
      }
    }
  }
}

// The published claim is 30 to 50 % less memory for 10 to 20 % more time, against keeping everything.
TEST(RecomputePlan, SavesMostOfTheActivationsOfADeepModel) {
  ModelConfig c = model(ModelConfig::Family::gpt2);
  c.n_layers = 12;
  const int64_t norms = c.n_layers * n * 2 * 2 * c.d_model;
  const auto share = [&](Recompute level) {
    return static_cast<double>(planned(c, DType::bf16, level).blocks) /
           static_cast<double>(planned(c, DType::bf16, Recompute::none).blocks + norms);
  };
  EXPECT_LT(share(Recompute::none), 0.885);
  EXPECT_LT(share(Recompute::activation), 0.65);
  EXPECT_LT(share(Recompute::attention), 0.42);
  EXPECT_LT(share(Recompute::block), 0.12);
}

}  // namespace
}  // namespace llmtrain::test
