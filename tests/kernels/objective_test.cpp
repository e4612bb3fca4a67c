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

}  // namespace
}  // namespace llmtrain
