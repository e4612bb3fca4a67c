#include "layers/norm.hpp"

#include <gtest/gtest.h>

#include "layers/layer_check.hpp"

namespace llmtrain::test {
namespace {

LayerCase norm_case(Norm& norm, NormSaved& saved, const NormShape& shape) {
  LayerCase layer{.documents = {23}, .x_columns = shape.channels, .y_rows = 23, .y_columns = shape.channels};
  layer.declare = [&norm, shape](UnitBuilder& unit) { norm = Norm::declare(unit, "norm", shape); };
  layer.plan = [&](Arena& arena, int64_t rows) {
    plan_kept(arena, norm, saved, DType::f32, rows, Recompute::none, "norm");
    return int64_t{0};
  };
  layer.forward = [&](Context& ctx, const Batch&, const Tensor& y, const Tensor& x) { norm.forward(ctx, y, x, saved); };
  layer.backward = [&](Context& ctx, const Batch&, const Tensor& dx, const Tensor& dy, const Tensor& x) {
    norm.backward(ctx, dx, dy, x, saved, false);
  };
  if (!shape.zero_centered) layer.around_one = {"norm.weight"};
  return layer;
}

TEST(NormLayer, GradientIsTheSlope) {
  for (const NormKind kind : {NormKind::layernorm, NormKind::rmsnorm}) {
    for (const bool zero_centered : {false, true}) {
      Norm norm;
      NormSaved saved;
      expect_right_gradients(norm_case(norm, saved, {kind, 1e-2, true, zero_centered, 14}));
    }
  }
}

TEST(NormLayer, AForgottenOffsetIsSeen) {
  Norm norm;
  NormSaved saved;
  LayerCase layer = norm_case(norm, saved, {NormKind::rmsnorm, 1e-2, true, true, 14});
  layer.backward = [&](Context& ctx, const Batch&, const Tensor& dx, const Tensor& dy, const Tensor& x) {
    Norm wrong = norm;
    wrong.weight_offset = 0;
    wrong.backward(ctx, dx, dy, x, saved, false);
  };
  expect_wrong_gradients(layer);
}

TEST(NormLayer, WeightsStartAsOne) {
  for (const bool zero_centered : {false, true}) {
    std::vector<UnitSpec> units;
    UnitBuilder unit(units, "layer");
    const Norm norm = Norm::declare(unit, "norm", {NormKind::rmsnorm, 1e-5, false, zero_centered, 4});
    EXPECT_EQ(units[0].params[0].init.kind, zero_centered ? Initializer::Kind::zeros : Initializer::Kind::ones);
    EXPECT_EQ(norm.weight_offset, zero_centered ? 1 : 0);
  }
}

}  // namespace
}  // namespace llmtrain::test
