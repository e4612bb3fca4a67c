#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "harness/errors.hpp"
#include "kernels/host/special_functions.hpp"

namespace llmtrain {
namespace {

template <class V>
V normal_cdf(V x) {
  V density;
  return host::fast_normal_cdf_and_density(x, density);
}

/// Largest error in units of the last place of fp32 over [low, high].
template <class Fast, class Exact>
double worst(const Fast& fast, const Exact& exact, float low, float high) {
  double units = 0;
  const int steps = 400000;
  for (int i = 0; i <= steps; ++i) {
    const float x = low + (high - low) * static_cast<float>(i) / static_cast<float>(steps);
    const double expected = exact(static_cast<double>(x));
    const float magnitude = std::fmax(std::fabs(static_cast<float>(expected)), std::numeric_limits<float>::min());
    const double unit = static_cast<double>(std::nextafter(magnitude, INFINITY)) - static_cast<double>(magnitude);
    units = test::larger(units, std::fabs(static_cast<double>(fast(x)) - expected) / unit);
  }
  return units;
}

TEST(SpecialFunctions, Sigmoid) {
  const auto exact = [](double x) { return 1 / (1 + std::exp(-x)); };
  EXPECT_LT(worst(host::fast_sigmoid<float>, exact, -80, 80), 3.0);
}

TEST(SpecialFunctions, HyperbolicTangent) {
  const auto exact = [](double x) { return std::tanh(x); };
  EXPECT_LT(worst(host::fast_tanh<float>, exact, -12, 12), 2.0);
  EXPECT_LT(worst(host::fast_tanh<float>, exact, -0.61f, 0.61f), 2.0);
  EXPECT_LT(worst(host::fast_tanh<float>, exact, -1e-3f, 1e-3f), 2.0);
  EXPECT_GT(worst([](float x) { return host::fast_tanh(x) * 1.000001f; }, exact, -6, 6), 2.0) << "control";
}

TEST(SpecialFunctions, NormalDistribution) {
  const auto exact = [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); };
  EXPECT_LT(worst(normal_cdf<float>, exact, -1, 8), 5.0);
  EXPECT_GT(worst([](float x) { return normal_cdf(x) * 1.000001f; }, exact, -1, 8), 5.0) << "control";
  // In the lower tail the rounding of x / sqrt(2) alone costs x^2 units, of ever smaller numbers.
  EXPECT_LT(worst(normal_cdf<float>, exact, -3, -1), 1.5 * 9 + 5);
  EXPECT_LT(worst(normal_cdf<float>, exact, -12, -3), 1.5 * 144 + 5);
}

TEST(SpecialFunctions, EightAtOnceGiveTheSameBits) {
  for (int i = 0; i < 20000; ++i) {
    host::Float8 x;
    for (int l = 0; l < 8; ++l) x[l] = static_cast<float>(i * 8 + l - 80000) * 1e-4f;
    const host::Float8 cdf = normal_cdf(x), sigmoid = host::fast_sigmoid(x);
    const host::Float8 tanh = host::fast_tanh(x);
    for (int l = 0; l < 8; ++l) {
      ASSERT_EQ(cdf[l], normal_cdf(x[l])) << x[l];
      ASSERT_EQ(sigmoid[l], host::fast_sigmoid(x[l])) << x[l];
      ASSERT_EQ(tanh[l], host::fast_tanh(x[l])) << x[l];
    }
    if (std::fabs(x[0]) < 3) {
      ASSERT_NE(cdf[0], normal_cdf(x[0] + 0.25f)) << "control";
    }
  }
}

TEST(SpecialFunctions, EndsOfTheRange) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(host::fast_sigmoid(infinity), 1);
  EXPECT_EQ(host::fast_sigmoid(-infinity), 0);
  EXPECT_EQ(host::fast_tanh(infinity), 1);
  EXPECT_EQ(host::fast_tanh(-infinity), -1);
  EXPECT_EQ(normal_cdf(-infinity), 0);
  EXPECT_EQ(normal_cdf(infinity), 1);
  EXPECT_TRUE(std::isnan(host::fast_tanh(std::nanf(""))));
  EXPECT_TRUE(std::isnan(host::fast_sigmoid(std::nanf(""))));
  EXPECT_TRUE(std::isnan(normal_cdf(std::nanf(""))));
}

}  // namespace
}  // namespace llmtrain
