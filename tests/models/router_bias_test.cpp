#include "models/router_bias.hpp"

#include <gtest/gtest.h>

#include "harness/harness.hpp"
#include "models/test_model.hpp"
#include "optim/optimizer.hpp"

namespace llmtrain::test {
namespace {

const std::string bias_1 = "model.layers.1.mlp.gate.e_score_correction_bias";
const std::string bias_2 = "model.layers.2.mlp.gate.e_score_correction_bias";

// Two layers with eight experts each, after one without.
TEST(RouterBias, MovesTowardsEqualLoadsWithTheNextUpdate) {
  const Golden golden("deepseek_v3_packed");
  const Rows rows = rows_of(golden);
  TestModel m(shape_of(golden), DType::f32, std::ssize(rows.ids));
  std::map<std::string, std::vector<float>> before;
  for (const std::string& name : golden.names("params")) before[name] = golden.floats("params/" + name).values;
  m.set(before);
  const std::vector<ParamRef> biases = m.decoder().router_biases();
  ASSERT_EQ(biases.size(), 2U);
  m.differentiate({rows});
  // The mean of layer 1 is 4; in layer 2 all are equal.
  const std::vector<int64_t> pairs = {5, 3, 4, 4, 16, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2};
  move_router_biases(m.params(), biases, pairs, 0.25, stream());
  make_optimizer(OptimizerConfig())->update(m.params(), {1, 1e-3, 1e-2}, stream());
  auto after = m.parameters();
  const std::vector<float> signs = {-1, 1, 0, 0, -1, 1, 1, 1};
  for (size_t e = 0; e < signs.size(); ++e) EXPECT_EQ(after[bias_1][e], before[bias_1][e] + 0.25f * signs[e]) << e;
  EXPECT_EQ(after[bias_2], before[bias_2]);
  EXPECT_NE(after["model.norm.weight"], before["model.norm.weight"]) << "control: the update";

  TestModel frozen(
      [&] {
        DecoderShape shape = shape_of(golden);
        shape.trained = [](const std::string& name) { return name != bias_1; };
        return shape;
      }(),
      DType::f32, std::ssize(rows.ids));
  frozen.set(before);
  std::vector<int64_t> unequal = pairs;
  unequal.back() = 0;
  move_router_biases(frozen.params(), frozen.decoder().router_biases(), unequal, 0.25, stream());
  after = frozen.parameters();
  EXPECT_EQ(after[bias_1], before[bias_1]);
  EXPECT_EQ(after[bias_2].front(), before[bias_2].front() - 0.25f);
}

TEST(RouterBias, OtherRoutersHaveNone) {
  const Golden golden("qwen3_moe");
  TestModel m(shape_of(golden), DType::f32, 8);
  EXPECT_TRUE(m.decoder().router_biases().empty());
}

}  // namespace
}  // namespace llmtrain::test
