#include "layers/attention.hpp"

#include <gtest/gtest.h>

#include <set>

#include "layers/layer_check.hpp"
#include "layers/norm.hpp"

namespace llmtrain::test {
namespace {

/// Four query heads of 6 elements, two key heads, over documents inside and across a border of 64-row blocks.
struct AttentionUnderTest {
  Attention attention;
  AttentionSaved saved;
  Rope rope;
  bool norms = false;
  bool bias = false;
  bool sinks = false;
  float norm_offset = 0;
  std::vector<int> documents = {9, 1, 21};

  AttentionUnderTest() { attention.shape = {4, 2, 6, 0, 0.4f}; }

  LayerCase layer() {
    constexpr int64_t channels = 10;
    int rows = 0;
    for (int length : documents) rows += length;
    LayerCase c{.documents = documents, .x_columns = channels, .y_rows = rows, .y_columns = channels};
    c.declare = [this](UnitBuilder& unit) {
      if (norms) {
        const NormShape shape{NormKind::rmsnorm, 1e-3, false, norm_offset > 0, attention.shape.head_dim};
        attention.query_norm = Norm::declare(unit, "q_norm", shape).weight;
        attention.key_norm = Norm::declare(unit, "k_norm", shape).weight;
        attention.norm_epsilon = 1e-3f;
        attention.norm_weight_offset = norm_offset;
      }
      if (sinks) attention.sinks = unit.vector("sinks", 4, Initializer::zeros(), {});
      attention.qkv = Linear::declare(unit, {{"q", 24}, {"k", 12}, {"v", 12}}, channels, bias, 0.02);
      attention.projection = Linear::declare(unit, {{"o", channels}}, 24, bias, 0.02);
    };
    c.plan = [this](Arena& arena, int64_t n) {
      plan_kept(arena, attention, saved, DType::f32, n, Recompute::none, "attention");
      rope.plan(arena, n);
      return attention.scratch_bytes(DType::f32, DType::f32, n);
    };
    c.forward = [this](Context& ctx, const Batch& batch, const Tensor& y, const Tensor& x) {
      rope.start(ctx.stream);
      rope.prepare(batch, 0, ctx.stream);
      attention.forward(ctx, batch, y, x, rope, saved);
    };
    c.backward = [this](Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy, const Tensor& x) {
      attention.backward(ctx, batch, dx, dy, x, rope, saved);
    };
    c.parameter_scale = 0.3;
    if (norm_offset == 0) c.around_one = {"q_norm.weight", "k_norm.weight"};
    return c;
  }
};

TEST(AttentionLayer, MasksDifferByLayerSeedAndStep) {
  const auto masked = [](int layer, uint64_t seed, int64_t step) {
    AttentionUnderTest test;
    test.attention.dropout = 0.5;
    test.attention.layer = layer;
    return output_at(test.layer(), seed, step);
  };
  EXPECT_EQ(masked(0, 1, 0), masked(0, 1, 0));
  EXPECT_EQ(std::set({masked(0, 1, 0), masked(1, 1, 0), masked(0, 2, 0), masked(0, 1, 1)}).size(), 4);
}

TEST(AttentionLayer, GradientIsTheSlope) {
  AttentionUnderTest plain;
  plain.bias = true;
  expect_right_gradients(plain.layer());
}

TEST(AttentionLayer, GradientWithRope) {
  AttentionUnderTest rotated;
  rotated.rope = rope_for(6);
  expect_right_gradients(rotated.layer());
  AttentionUnderTest partly;
  partly.rope = rope_for(4);
  partly.rope.factor = 1.2;
  expect_right_gradients(partly.layer());
}

TEST(AttentionLayer, GradientWithRopeByLength) {
  AttentionUnderTest stretched;
  stretched.rope = rope_for(6);
  stretched.rope.long_frequencies = stretched.rope.frequencies;
  stretched.rope.limit = 8;
  stretched.rope.ntk_factor = 3;
  expect_right_gradients(stretched.layer());
}

TEST(AttentionLayer, GradientWithNormsOfQueriesAndKeys) {
  for (const float offset : {0.0f, 1.0f}) {
    AttentionUnderTest normed;
    normed.norms = true;
    normed.norm_offset = offset;
    normed.rope = rope_for(6);
    expect_right_gradients(normed.layer());
  }
}

TEST(AttentionLayer, GradientWithSoftcapAndWindow) {
  AttentionUnderTest capped;
  capped.attention.shape.softcap = 0.8f;
  capped.attention.shape.window = 5;
  capped.rope = rope_for(6);
  expect_right_gradients(capped.layer());
  AttentionUnderTest wide;
  wide.attention.shape.softcap = 2;
  wide.attention.shape.window = 70;
  wide.documents = {130};
  expect_right_gradients(wide.layer());
}

TEST(AttentionLayer, GradientWithSinks) {
  AttentionUnderTest test;
  test.sinks = true;
  test.rope = rope_for(6);
  test.attention.shape.window = 7;
  LayerCase layer = test.layer();
  expect_right_gradients(layer);
  layer.backward = [&](Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy, const Tensor& x) {
    Attention wrong = test.attention;
    wrong.shape.window = 8;
    wrong.backward(ctx, batch, dx, dy, x, test.rope, test.saved);
  };
  expect_wrong_gradients(layer);
}

TEST(AttentionLayer, MistakesAreSeen) {
  AttentionUnderTest test;
  test.norms = true;
  test.attention.shape.softcap = 1;
  test.attention.shape.window = 4;
  test.rope = rope_for(6);
  LayerCase layer = test.layer();
  const auto with = [&](const std::function<void(Attention&, Rope&)>& mistake) {
    layer.backward = [&test, mistake](Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy,
                                      const Tensor& x) {
      Attention wrong = test.attention;
      Rope rope = test.rope;
      mistake(wrong, rope);
      wrong.backward(ctx, batch, dx, dy, x, rope, test.saved);
    };
    return layer;
  };
  expect_right_gradients(with([](Attention&, Rope&) {}));
  expect_wrong_gradients(with([](Attention& a, Rope&) { a.shape.softcap = 0; }));
  expect_wrong_gradients(with([](Attention& a, Rope&) { a.shape.window = 5; }));
  expect_wrong_gradients(with([](Attention& a, Rope&) { a.shape.scale *= 1.1f; }));
  expect_wrong_gradients(with([](Attention&, Rope& r) { r = {}; }));
  expect_wrong_gradients(with([](Attention& a, Rope&) { std::swap(a.query_norm, a.key_norm); }));
}

}  // namespace
}  // namespace llmtrain::test
