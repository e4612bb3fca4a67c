#include "layers/linear.hpp"

#include <gtest/gtest.h>

#include "layers/layer_check.hpp"

namespace llmtrain::test {
namespace {

TEST(LinearLayer, GradientIsTheSlope) {
  for (const bool bias : {false, true}) {
    Linear linear;
    LayerCase layer{.documents = {19}, .x_columns = 10, .y_rows = 19, .y_columns = 12};
    layer.declare = [&](UnitBuilder& unit) { linear = Linear::declare(unit, {{"a", 7}, {"b", 5}}, 10, bias, 0.02); };
    layer.plan = [](Arena&, int64_t) { return int64_t{0}; };
    layer.forward = [&](Context& ctx, const Batch& batch, const Tensor& y, const Tensor& x) {
      linear.forward(ctx, batch, y, x);
    };
    layer.backward = [&](Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy, const Tensor& x) {
      linear.backward(ctx, batch, dx, dy, x);
    };
    expect_right_gradients(layer);
  }
}

TEST(LinearLayer, SlicesSayWhatFilesTranspose) {
  std::vector<UnitSpec> units;
  UnitBuilder unit(units, "layer");
  Linear::declare(unit, {{"conv", 6, true}, {"plain", 4}}, 5, true, 0.02);
  const UnitSpec& spec = units.at(0);
  ASSERT_EQ(spec.params.size(), 2u);
  EXPECT_TRUE(spec.params[0].slices[0].transposed);
  EXPECT_FALSE(spec.params[0].slices[1].transposed);
  EXPECT_EQ(spec.params[0].slices[1].first_row, 6);
  EXPECT_EQ(spec.params[1].slices[0].name, "conv.bias");
  EXPECT_FALSE(spec.params[1].slices[0].transposed) << "a vector";
}

}  // namespace
}  // namespace llmtrain::test
