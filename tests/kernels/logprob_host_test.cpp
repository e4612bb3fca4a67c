// Threads of logprob, and the exponentials that it shares with attention.

#include <gtest/gtest.h>
#include <omp.h>

#include <bit>
#include <cmath>
#include <limits>

#include "harness/errors.hpp"
#include "kernels/attention_reference.hpp"
#include "kernels/host/fast_math.hpp"
#include "kernels/logprob.hpp"

namespace llmtrain::test {
namespace {

TEST(LogprobThreads, BitsDoNotDependOnTheirNumber) {
  const int64_t rows = 37;
  const int64_t columns = 3001;
  DeviceTensor logits(DType::f32, {rows, columns}), targets(DType::i32, {rows}), cotangents(DType::f32, {rows});
  const std::vector<int32_t> target(static_cast<size_t>(rows), 17);
  targets.set(target.data());
  cotangents.set(random_values(rows, 1, DType::f32, 2));
  const auto run = [&](int threads, unsigned seed) {
    logits.set(random_values(rows * columns, 4, DType::f32, seed));
    const int before = omp_get_max_threads();
    omp_set_num_threads(threads);
    DeviceTensor logp(DType::f32, {rows}), lse(DType::f32, {rows}), entropy(DType::f32, {rows});
    const TokenStatistics s{logp.tensor, lse.tensor, entropy.tensor, {}};
    logprob_forward(s, logits.tensor, targets.tensor, columns, stream());
    const Tensor& g = cotangents.tensor;
    logprob_backward(logits.tensor, logits.tensor, targets.tensor, s, {g, g, g}, columns, 0, stream());
    omp_set_num_threads(before);
    std::vector<double> all = logits.values();
    for (const DeviceTensor* t : {&logp, &lse, &entropy}) {
      const auto v = t->values();
      all.insert(all.end(), v.begin(), v.end());
    }
    return all;
  };
  const auto one = run(1, 1);
  for (const int threads : {2, 3, 4}) EXPECT_EQ(run(threads, 1), one);
  EXPECT_NE(run(2, 3), one);
}

TEST(FastMath, ExponentialsAgreeWithTheLibrary) {
  double error = 0;
  double capped_error = 0;
  int64_t compared = 0;
  for (uint32_t bits = 0; bits < 0x42B20000u; bits += 4099) {  // 0 .. 89
    for (const uint32_t sign : {0u, 0x80000000u}) {
      const float x = std::bit_cast<float>(bits | sign);
      const double exact = std::exp(double{x});
      if (x > -87 && x < 88.7f) error = larger(error, std::abs(host::fast_exp(x) - exact) / exact);
      const double power = std::exp2(double{x});
      if (x <= 0) capped_error = larger(capped_error, std::abs(host::fast_exp2_capped(x) - power) / power);
      ++compared;
    }
  }
  EXPECT_GT(compared, 100000);
  EXPECT_LT(error, 1e-7);
  EXPECT_LT(capped_error, 1e-7);
}

TEST(FastMath, EightAtOnceEqualOneByOne) {
  std::mt19937_64 generator(1);
  for (int trial = 0; trial < 20000; ++trial) {
    float x[8];
    for (float& v : x) v = std::bit_cast<float>(static_cast<uint32_t>(generator()));  // NaN and infinity included
    const host::Float8 v = host::load8(x);
    float exponential[8], power[8];
    bf16 half[8];
    host::store8(exponential, host::fast_exp(v));
    host::store8(power, host::fast_exp2_capped(v));
    host::store8(half, v);
    for (int l = 0; l < 8; ++l) {
      const auto same = [](float a, float b) { return std::isnan(a) ? std::isnan(b) : a == b; };
      EXPECT_TRUE(same(exponential[l], host::fast_exp(x[l]))) << x[l];
      EXPECT_TRUE(same(power[l], host::fast_exp2_capped(x[l]))) << x[l];
      EXPECT_EQ(half[l].bits, bf16(x[l]).bits) << x[l];
    }
  }
}

TEST(FastMath, EndsOfTheRange) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(host::fast_exp(0.0f), 1);
  EXPECT_EQ(host::fast_exp(-infinity), 0);
  EXPECT_EQ(host::fast_exp(-200.0f), 0);
  EXPECT_EQ(host::fast_exp(89.0f), infinity);
  EXPECT_EQ(host::fast_exp(infinity), infinity);
  EXPECT_NEAR(host::fast_exp(-100.0f), std::exp(-100.0), 2e-45);
  EXPECT_TRUE(std::isnan(host::fast_exp(nan)));
  EXPECT_EQ(host::fast_exp2_capped(0.0f), 1);
  EXPECT_EQ(host::fast_exp2_capped(5.0f), 1);
  EXPECT_EQ(host::fast_exp2_capped(-1.0f), 0.5f);
  EXPECT_EQ(host::fast_exp2_capped(-infinity), std::exp2(-126.0f));
  EXPECT_TRUE(std::isnan(host::fast_exp2_capped(nan)));
}

}  // namespace
}  // namespace llmtrain::test
