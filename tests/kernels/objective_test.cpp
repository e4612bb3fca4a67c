#include "kernels/objective.hpp"

#include <gtest/gtest.h>

#include "kernels/kernel_test.hpp"

namespace llmtrain {
namespace {

TEST(CrossEntropy, CotangentsAreTheNegativeWeights) {
  test::Values weights = test::random_values(1001, 1);
  const test::Array in(DType::f32, {1001}, weights), out(DType::f32, {1001});
  weights = in.values();
  cross_entropy_cotangents(out, in, {}, test::stream());
  for (double& w : weights) w = -w;
  EXPECT_EQ(out.values(), weights);
  cross_entropy_cotangents(out, in, test::Array(DType::f32, {1}, {1024}), test::stream());
  for (double& w : weights) w *= 1024;
  EXPECT_EQ(out.values(), weights) << "scaled";
  EXPECT_THROW(cross_entropy_cotangents(out, in.tensor().rows(0, 1000), {}, test::stream()), Error);
}

TEST(CrossEntropy, ProbabilitiesMultiplyTheWeights) {
  constexpr int64_t n = 1001;
  test::Values logp = test::random_values(n, 2, 6);
  for (double& value : logp) value -= 6;  // from -12 to 0
  const test::Array in(DType::f32, {n}, logp), weights(DType::f32, {n}, test::random_values(n, 3)),
      out(DType::f32, {n});
  probability_weights(out, in, weights, test::stream());
  const test::Values found = out.values(), x = in.values(), w = weights.values();
  for (size_t i = 0; i < found.size(); ++i) {
    const double expected = w[i] * std::exp(x[i]);
    EXPECT_NEAR(found[i], expected, 3e-7 * std::abs(expected)) << i;
  }
  EXPECT_THROW(probability_weights(out, in.tensor().rows(0, 1000), weights, test::stream()), Error);
}

}  // namespace
}  // namespace llmtrain
