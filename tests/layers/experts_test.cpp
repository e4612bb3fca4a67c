#include "layers/experts.hpp"

#include <gtest/gtest.h>

#include "layers/layer_check.hpp"

namespace llmtrain::test {
namespace {

struct ExpertsUnderTest {
  Experts experts;
  ExpertsSaved saved;
  bool biases = false;  ///< and the activation that goes with them

  /// `shared`: width of the shared expert, behind a gate; 0: there is none.
  LayerCase layer(const RoutingRule& rule, int64_t shared) {
    constexpr int64_t channels = 8, width = 6, rows = 13;
    experts.rule = rule;
    experts.channels = channels;
    LayerCase c{.documents = {rows}, .x_columns = channels, .y_rows = rows, .y_columns = channels};
    c.declare = [this, shared](UnitBuilder& unit) {
      const auto matrix = [&](const std::string& name, int64_t outputs, int64_t inputs) {
        return Linear::declare(unit, {{name, outputs}}, inputs, false, 0.02);
      };
      const auto gated = [&](const std::string& name, int64_t hidden) {
        Mlp mlp;
        mlp.activation = biases ? Activation::swiglu_oai : Activation::swiglu;
        mlp.up = Linear::declare(unit, {{name + ".gate", hidden}, {name + ".up", hidden}}, channels, false, 0.02);
        mlp.down = matrix(name + ".down", channels, hidden);
        return mlp;
      };
      experts.router = matrix("router", experts.rule.experts, channels);
      if (shared > 0) {
        experts.shared_gate = matrix("shared_gate", 1, channels);
        experts.shared.emplace().whole() = gated("shared", shared);
      }
      for (int64_t e = 0; e < experts.rule.experts; ++e) experts.mlps.push_back(gated(std::to_string(e), width));
      for (int64_t e = 0; biases && e < experts.rule.experts; ++e) {
        Mlp& mlp = experts.mlps[static_cast<size_t>(e)];
        const std::string name = std::to_string(e);
        mlp.up.declare_bias(unit, {{name + ".gate", width}, {name + ".up", width}});
        Linear down = mlp.down;
        down.declare_bias(unit, {{name + ".down", channels}});
        experts.down_biases.push_back(down.bias);
      }
    };
    c.plan = [this](Arena& arena, int64_t n) {
      plan_kept(arena, experts, saved, DType::f32, n, Recompute::none, "experts");
      return experts.scratch_bytes(DType::f32, n);
    };
    c.forward = [this](Context& ctx, const Batch& batch, const Tensor& y, const Tensor& x) {
      experts.forward_hidden(ctx, batch, x, saved, saved, false);
      experts.project(ctx, batch, y, x, saved, saved);
    };
    c.backward = [this](Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy, const Tensor& x) {
      experts.backward(ctx, batch, dx, dy, x, saved, saved);
    };
    c.parameter_scale = 0.5;
    return c;
  }
};

// No choice of a token changes with these differences.
TEST(ExpertsLayer, GradientIsTheSlope) {
  using Score = RoutingRule::Score;
  for (const RoutingRule& rule :
       {RoutingRule{4, 2}, RoutingRule{4, 2, Score::softmax, true}, RoutingRule{4, 4, Score::softmax, true, 2.5f},
        RoutingRule{4, 2, Score::sigmoid, true, 2.5f}, RoutingRule{3, 1, Score::sigmoid}}) {
    ExpertsUnderTest alone, beside;
    expect_right_gradients(alone.layer(rule, 0));
    expect_right_gradients(beside.layer(rule, 10));
  }
}

TEST(ExpertsLayer, GradientWithBiases) {
  const RoutingRule rule{4, 2, RoutingRule::Score::softmax, true};
  ExpertsUnderTest right, test;
  right.biases = test.biases = true;
  expect_right_gradients(right.layer(rule, 0));
  LayerCase layer = test.layer(rule, 0);
  layer.backward = [&](Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy, const Tensor& x) {
    Experts wrong = test.experts;
    std::swap(wrong.down_biases[0], wrong.down_biases[1]);
    wrong.backward(ctx, batch, dx, dy, x, test.saved, test.saved);
  };
  expect_wrong_gradients(layer);
}

TEST(ExpertsLayer, AWeightThatIsNotNormalisedIsSeen) {
  ExpertsUnderTest test;
  LayerCase layer = test.layer({4, 2, RoutingRule::Score::softmax, true}, 0);
  layer.backward = [&](Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy, const Tensor& x) {
    Experts wrong = test.experts;
    wrong.rule.normalized = false;
    wrong.backward(ctx, batch, dx, dy, x, test.saved, test.saved);
  };
  expect_wrong_gradients(layer);
}

}  // namespace
}  // namespace llmtrain::test
