#include "layers/block.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "kernels/elementwise.hpp"
#include "layers/layer_check.hpp"

namespace llmtrain::test {
namespace {

enum class Norms : uint8_t { before, after, sandwich };

struct BlockUnderTest {
  Block block;
  BlockSaved saved, all;
  Rope rope = rope_for(4);
  double dropout = 0;
  Recompute recompute = Recompute::none;

  LayerCase layer(Norms norms, NormKind kind) {
    constexpr int64_t channels = 12;
    block.channels = channels;
    block.pre_norm = norms != Norms::after;
    block.sandwich = norms == Norms::sandwich;
    block.dropout = dropout;
    LayerCase c{.documents = {13, 8}, .x_columns = channels, .y_rows = 21, .y_columns = channels};
    c.declare = [this, kind](UnitBuilder& unit) {
      const NormShape shape{kind, 1e-2, true, false, channels};
      block.norm1 = Norm::declare(unit, "norm1", shape);
      block.norm2 = Norm::declare(unit, "norm2", shape);
      if (block.sandwich) {
        block.post_attention = Norm::declare(unit, "post_attention", shape);
        block.post_mlp = Norm::declare(unit, "post_mlp", shape);
      }
      block.attention.whole().shape = {3, 1, 4, 0, 0.5f};
      block.attention.whole().qkv = Linear::declare(unit, {{"qkv", 20}}, channels, true, 0.02);
      block.attention.whole().projection = Linear::declare(unit, {{"o", channels}}, 12, true, 0.02);
      block.mlp.whole().activation = Activation::swiglu;
      block.mlp.whole().up = Linear::declare(unit, {{"gate", 9}, {"up", 9}}, channels, true, 0.02);
      block.mlp.whole().down = Linear::declare(unit, {{"down", channels}}, 9, true, 0.02);
    };
    c.plan = [this](Arena& arena, int64_t n) {
      plan_kept(arena, block, saved, DType::f32, n, recompute, "block");
      rope.plan(arena, n);
      return block.scratch_bytes(DType::f32, n, recompute);
    };
    c.forward = [this](Context& ctx, const Batch& batch, const Tensor& y, const Tensor& x) {
      ctx.training = dropout > 0;
      rope.start(ctx.stream);
      cast(saved.input, x, ctx.stream);
      block.forward(ctx, batch, y, rope, saved, all);
    };
    c.backward = [this](Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy, const Tensor&) {
      cast(dx, dy, ctx.stream);
      block.backward(ctx, batch, dx, rope, saved, all);
    };
    c.parameter_scale = 0.3;
    c.around_one = {"norm1.weight", "norm2.weight", "post_attention.weight", "post_mlp.weight"};
    return c;
  }
};

class BlockLayer : public ::testing::TestWithParam<Norms> {};

TEST_P(BlockLayer, GradientIsTheSlope) {
  for (const NormKind kind : {NormKind::layernorm, NormKind::rmsnorm}) {
    BlockUnderTest test;
    expect_right_gradients(test.layer(GetParam(), kind));
  }
}

TEST_P(BlockLayer, GradientUnderDropout) {
  BlockUnderTest test;
  test.dropout = 0.3;
  expect_right_gradients(test.layer(GetParam(), NormKind::rmsnorm));
}

TEST_P(BlockLayer, GradientWithRecomputation) {
  for (const Recompute level : {Recompute::activation, Recompute::attention, Recompute::block}) {
    BlockUnderTest test;
    test.recompute = level;
    test.dropout = 0.3;
    expect_right_gradients(test.layer(GetParam(), NormKind::layernorm));
  }
}

TEST_P(BlockLayer, AMistakeIsSeen) {
  BlockUnderTest test;
  LayerCase layer = test.layer(GetParam(), NormKind::rmsnorm);
  layer.backward = [&](Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy, const Tensor&) {
    Block wrong = test.block;
    std::swap(wrong.norm1.weight, wrong.norm2.weight);
    cast(dx, dy, ctx.stream);
    wrong.backward(ctx, batch, dx, test.rope, test.saved, test.all);
  };
  expect_wrong_gradients(layer);
}

/// Two equal blocks, whose norms are joined to the sums before them or run on their own.
std::vector<float> output_of_two(Norms norms, bool parallel, bool joined, bool other_norm = false,
                                 bool no_norm = false) {
  BlockUnderTest test;
  test.dropout = 0.3;
  LayerCase c = test.layer(norms, NormKind::layernorm);
  test.block.parallel = parallel;
  Tensor normed, first;
  NormSaved next_saved;
  c.plan = [&, plan = c.plan](Arena& arena, int64_t n) {
    arena.add(normed, MemoryCategory::activations, "normed", DType::f32, {n, c.y_columns});
    arena.add(first, MemoryCategory::activations, "first", DType::f32, {n, c.y_columns});
    plan_kept(arena, test.block.norm1, next_saved, DType::f32, n, Recompute::none, "next");
    return plan(arena, n);
  };
  c.forward = [&](Context& ctx, const Batch& batch, const Tensor& y, const Tensor& x) {
    ctx.training = true;
    test.rope.start(ctx.stream);
    const auto run = [&](const Tensor& to, const JoinedNorms& norms_of_sums) {
      test.block.forward(ctx, batch, to, test.rope, test.saved, test.all, norms_of_sums);
    };
    if (no_norm) test.block.norm1 = Norm();  // OLMo 2
    const Norm& norm1 = test.block.norm1;
    const Norm& last = other_norm ? test.block.norm2 : norm1;
    cast(test.saved.input, x, ctx.stream);
    run(first, joined ? JoinedNorms{normed, false, &norm1, &test.saved.norm1} : JoinedNorms{});
    cast(test.saved.input, first, ctx.stream);
    run(first, joined ? JoinedNorms{normed, true, &last, &next_saved} : JoinedNorms{});
    if (!joined) last.forward(ctx, normed, first, next_saved);
    cast(y, normed, ctx.stream);
  };
  return output_at(c, 1, 0);
}

// The rank that has the weights of a norm decides if it is joined; the bits do not depend on that.
TEST(BlockNorms, JoinedToSumsHaveTheSameBits) {
  for (const Norms norms : {Norms::before, Norms::sandwich}) {
    EXPECT_EQ(output_of_two(norms, false, true), output_of_two(norms, false, false));
    EXPECT_NE(output_of_two(norms, false, true, true), output_of_two(norms, false, false)) << "control";
  }
  EXPECT_EQ(output_of_two(Norms::before, true, true), output_of_two(Norms::before, true, false));
  EXPECT_EQ(output_of_two(Norms::sandwich, false, true, false, true),
            output_of_two(Norms::sandwich, false, false, false, true));
}

/// With weights next to nothing each branch adds its bias, 1.
std::vector<float> sum_of_biases(double dropout, int layer, uint64_t seed, int64_t step) {
  BlockUnderTest test;
  test.dropout = dropout;
  LayerCase c = test.layer(Norms::before, NormKind::rmsnorm);
  test.block.layer = layer;
  c.parameter_scale = 1e-30;
  c.around_one = {"o.bias", "down.bias"};
  return output_at(c, seed, step);
}

TEST(BlockDropout, MasksDifferByLayerSeedAndStep) {
  const auto masked = [](int layer, uint64_t seed, int64_t step) { return sum_of_biases(0.5, layer, seed, step); };
  EXPECT_EQ(masked(0, 1, 0), masked(0, 1, 0));
  EXPECT_EQ(std::set({masked(0, 1, 0), masked(1, 1, 0), masked(0, 2, 0), masked(0, 1, 1)}).size(), 4);
}

// Both biases are kept or dropped (0 or 4 instead of 2), or one of them (2).
TEST(BlockDropout, MasksDifferByBranch) {
  const std::vector<float> whole = sum_of_biases(0, 0, 1, 0), masked = sum_of_biases(0.5, 0, 1, 0);
  int equal = 0;
  for (size_t i = 0; i < whole.size(); ++i) equal += std::abs(whole[i] - masked[i]) < 1e-3f ? 1 : 0;
  EXPECT_NEAR(equal, 126, 50) << "of 252";
}

INSTANTIATE_TEST_SUITE_P(Norms, BlockLayer, ::testing::Values(Norms::before, Norms::after, Norms::sandwich),
                         [](const auto& test) {
                           return test.param == Norms::before  ? "Before"
                                  : test.param == Norms::after ? "After"
                                                               : "Sandwich";
                         });

}  // namespace
}  // namespace llmtrain::test
