#include "models/golden.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/batch.hpp"
#include "core/error.hpp"

namespace llmtrain {
namespace {

class GoldenFile : public ::testing::TestWithParam<std::string> {};

int64_t product(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

/// Mean of -log softmax(logits)[target] over the trained rows, in double.
double mean_loss(const GoldenArray<float>& logits, const std::vector<int32_t>& targets) {
  const auto v = static_cast<size_t>(logits.shape[1]);
  double sum = 0;
  int trained = 0;
  for (size_t row = 0; row < targets.size(); ++row) {
    if (targets[row] == ignore_target) continue;
    const float* x = &logits.values[row * v];
    const double top = *std::max_element(x, x + v);
    double total = 0;
    for (size_t i = 0; i < v; ++i) total += std::exp(x[i] - top);
    sum += std::log(total) + top - x[targets[row]];
    ++trained;
  }
  return sum / trained;
}

TEST_P(GoldenFile, ArraysFitTheBatch) {
  const Golden golden(GetParam());
  const auto ids = golden.ints("ids"), targets = golden.ints("targets"), positions = golden.ints("positions");
  const auto segments = golden.ints("segments");
  const int64_t n = static_cast<int64_t>(ids.values.size());
  EXPECT_EQ(segments.values.front(), 0);
  EXPECT_EQ(segments.values.back(), n);
  EXPECT_EQ(golden.floats("logits").shape, (std::vector<int64_t>{n, golden.integer("vocab_size")}));
  for (size_t s = 0; s + 1 < segments.values.size(); ++s) {
    for (int32_t row = segments.values[s]; row < segments.values[s + 1]; ++row) {
      const auto i = static_cast<size_t>(row);
      EXPECT_EQ(positions.values[i], row - segments.values[s]);
      const bool last = row + 1 == segments.values[s + 1];
      const bool follows = targets.values[i] == ignore_target || last || targets.values[i] == ids.values[i + 1];
      EXPECT_TRUE(follows) << "row " << i;
    }
  }
}

TEST_P(GoldenFile, LossFollowsFromTheLogits) {
  const Golden golden(GetParam());
  const auto targets = golden.ints("targets").values;
  const auto logits = golden.floats("logits");
  double of_routers = 0;
  if (golden.has("router_aux")) of_routers += golden.number("router_aux") * golden.scalar("router_loss");
  if (golden.has("router_z_loss")) of_routers += golden.number("router_z_loss") * golden.scalar("router_z_loss");
  EXPECT_NEAR(mean_loss(logits, targets) + of_routers, golden.scalar("loss"), 1e-6 * golden.scalar("loss"));
  EXPECT_EQ(golden.doubles("losses").values[0], golden.scalar("loss"));
  auto shifted = targets;  // control: a wrong shift is detected
  std::rotate(shifted.begin(), shifted.begin() + 1, shifted.end());
  EXPECT_GT(std::abs(mean_loss(logits, shifted) + of_routers - golden.scalar("loss")), 1e-4 * golden.scalar("loss"));
}

TEST_P(GoldenFile, GradientsBelongToTheParameters) {
  const Golden golden(GetParam());
  auto names = golden.names("params");
  std::erase_if(names, [](const std::string& name) { return name.ends_with("e_score_correction_bias"); });
  EXPECT_EQ(names, golden.names("grads"));
  double squares = 0;
  for (const std::string& name : names) {
    const auto value = golden.floats("params/" + name), grad = golden.floats("grads/" + name);
    EXPECT_EQ(value.shape, grad.shape) << name;
    EXPECT_EQ(static_cast<size_t>(product(value.shape)), value.values.size()) << name;
    EXPECT_LT(golden.gradient_error(name, grad.values), 1e-6) << name;
    const bool zero = std::ranges::all_of(grad.values, [](float g) { return g == 0; });
    EXPECT_TRUE(!zero || name.find(".experts.") != std::string::npos) << name;
    EXPECT_NEAR(golden.gradient_error(name, std::vector<float>(grad.values.size(), 0.0f)), zero ? 0 : 1, 1e-5) << name;
    for (float g : grad.values) squares += static_cast<double>(g) * g;
  }
  const double norm = golden.doubles("grad_norms").values[0];
  EXPECT_NEAR(std::sqrt(squares), norm, 1e-5 * norm);
  EXPECT_GT(norm, golden.number("adamw_max_grad_norm"));
}

TEST_P(GoldenFile, ZeroRangesAreNoise) {
  const Golden golden(GetParam());
  const std::vector<Golden::ZeroRange> ranges = golden.zero_gradients();
  for (const Golden::ZeroRange& range : ranges) {
    const auto grad = golden.floats("grads/" + range.name).values;
    ASSERT_LE(static_cast<size_t>(range.end), grad.size());
    for (size_t i = 0; i < grad.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      const bool inside = std::ranges::any_of(ranges, [&](const Golden::ZeroRange& other) {
        return other.name == range.name && at >= other.begin && at < other.end;
      });
      EXPECT_EQ(std::abs(grad[i]) < 1e-7, inside) << range.name << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenFile, ::testing::ValuesIn(Golden::cases()),
                         [](const auto& instance) { return instance.param; });

TEST(Golden, EveryVariantHasACase) {
  EXPECT_THAT(Golden::cases(), ::testing::IsSupersetOf({"gpt2", "gpt2_packed", "llama", "llama_gqa", "llama_packed"}));
}

TEST(Golden, MissingThingsAreErrors) {
  EXPECT_THROW(Golden("no_such_case"), Error);
  const Golden golden("gpt2");
  EXPECT_THROW(golden.floats("params/nothing"), Error);
  EXPECT_THROW(golden.integer("nothing"), Error);
  EXPECT_THROW(golden.text("d_model"), Error);
  EXPECT_THROW(golden.names("nothing"), Error);
  EXPECT_FALSE(golden.has("nothing"));
  EXPECT_EQ(golden.text("family"), "gpt2");
  EXPECT_THAT(golden.attributes(), ::testing::Contains("rope_theta"));
}

}  // namespace
}  // namespace llmtrain
