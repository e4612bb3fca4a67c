#include "layers/mlp.hpp"

#include <gtest/gtest.h>

#include "layers/layer_check.hpp"

namespace llmtrain::test {
namespace {

struct MlpUnderTest {
  Mlp mlp;
  MlpSaved saved;

  LayerCase layer(Activation activation) {
    constexpr int64_t channels = 8, width = 14, rows = 17;
    mlp.activation = activation;
    LayerCase c{.documents = {rows}, .x_columns = channels, .y_rows = rows, .y_columns = channels};
    c.declare = [this, activation](UnitBuilder& unit) {
      std::vector<LinearPart> up = {{"up", width}};
      if (is_gated(activation)) up.insert(up.begin(), {"gate", width});
      mlp.up = Linear::declare(unit, up, channels, true, 0.02);
      mlp.down = Linear::declare(unit, {{"down", channels}}, width, true, 0.02);
    };
    c.plan = [this](Arena& arena, int64_t n) {
      plan_kept(arena, mlp, saved, DType::f32, n, Recompute::none, "mlp");
      return mlp.scratch_bytes(DType::f32, DType::f32, n);
    };
    c.forward = [this](Context& ctx, const Batch& batch, const Tensor& y, const Tensor& x) {
      mlp.forward(ctx, batch, y, x, saved);
    };
    c.backward = [this](Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy, const Tensor& x) {
      mlp.backward(ctx, batch, dx, dy, x, saved);
    };
    c.parameter_scale = 0.3;
    return c;
  }
};

// relu is omitted: its kink may lie between the points of a difference.
TEST(MlpLayer, GradientIsTheSlope) {
  for (const Activation a : {Activation::gelu, Activation::gelu_tanh, Activation::silu, Activation::swiglu,
                             Activation::geglu, Activation::geglu_tanh}) {
    MlpUnderTest test;
    expect_right_gradients(test.layer(a));
  }
}

TEST(MlpLayer, TheOtherActivationIsSeen) {
  MlpUnderTest test;
  LayerCase layer = test.layer(Activation::swiglu);
  layer.backward = [&](Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy, const Tensor& x) {
    Mlp wrong = test.mlp;
    wrong.activation = Activation::geglu;
    wrong.forward(ctx, batch, dx, x, test.saved);  // overwrites the saved derivatives
    wrong.backward(ctx, batch, dx, dy, x, test.saved);
  };
  expect_wrong_gradients(layer);
}

}  // namespace
}  // namespace llmtrain::test
