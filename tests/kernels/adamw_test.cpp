#include "kernels/adamw.hpp"

#include <gtest/gtest.h>

#include "kernels/kernel_test.hpp"

namespace llmtrain {
namespace {

using test::Array;
using test::Bytes;
using test::Values;

const std::vector<Values> gradients = {{0.1, -0.02, 1e-6, 0.0, 3.0, -1e-9},
                                       {-0.3, 0.04, 1e-6, 0.0, -2.0, 1e-9},
                                       {0.05, 0.01, -1e-5, 0.0, 10.0, 1e-3},
                                       {0.0, -0.7, 1e-6, 1e-8, -1.0, 0.0},
                                       {0.25, 0.33, 2e-6, 0.0, 0.5, 5.0}};
const Values start = {0.5, -1.25, 3.0e-3, 0.0, 1e3, -7.0};

AdamwStep step(int64_t t) { return {1e-2, 0.9, 0.95, 1e-8, 0.1, t, 1}; }

// torch.optim.AdamW (2.15, CPU, fp32) after the five steps above: lr 1e-2, betas (0.9, 0.95), eps 1e-8, decay 0.1.
TEST(Adamw, AgreesWithPyTorch) {
  const Values p = {0x1.fb8ec8p-2, -0x1.3bfd28p+0, -0x1.888158p-8, -0x1.c02c62p-9, 0x1.f17de4p+9, -0x1.bec552p+2};
  const Values m = {0x1.c243dep-7, -0x1.c3f8e8p-6, -0x1.999f2ap-22, 0x1.eec7bcp-31, 0x1.a45e0ep-1, 0x1.000a9ep-1};
  const Values v = {0x1.ebbbb4p-8, 0x1.d8035ap-6, 0x1.54d66ep-38, 0x1.5e7cf6p-58, 0x1.47127cp+2, 0x1.400000p+0};
  const Array master(DType::f32, {6}, start), first(DType::f32, {6}), second(DType::f32, {6}),
      weights(DType::bf16, {6});
  Array gradient(DType::f32, {6});
  for (size_t t = 0; t < gradients.size(); ++t) {
    gradient.set(gradients[t]);
    adamw_update(master, first, second, gradient, weights, step(static_cast<int64_t>(t) + 1), test::stream());
  }
  // Fused multiply-adds round less often than PyTorch does: a few units in the last place.
  const auto units = [](const Values& expected, double count) {
    return [&expected, count](size_t i) { return count * 0x1p-23 * std::fabs(expected[i]); };
  };
  test::expect_close(
      master.values(), p, [&](size_t i) { return 4 * 0x1p-23 * std::fabs(p[i]) + 2e-9; }, "p");
  test::expect_close(first.values(), m, units(m, 4), "m");
  test::expect_close(second.values(), v, units(v, 4), "v");
  EXPECT_EQ(weights.bytes(), Array(DType::bf16, {6}, master.values()).bytes());
}

/// The paper's algorithm 2 in double.
TEST(Adamw, AgreesWithDouble) {
  const int64_t n = 5003;
  Values p = test::random_values(n, 1), m(static_cast<size_t>(n)), v(static_cast<size_t>(n));
  const Array master(DType::f32, {n}, p), first(DType::f32, {n}), second(DType::f32, {n});
  p = master.values();
  for (int64_t t = 1; t <= 4; ++t) {
    const Array gradient(DType::f32, {n}, test::random_values(n, static_cast<uint64_t>(t) + 10));
    const Values g = gradient.values();
    AdamwStep s = step(t);
    s.gradient_scale = 0.25;
    adamw_update(master, first, second, gradient, {}, s, test::stream());
    for (size_t i = 0; i < p.size(); ++i) {
      const double scaled = 0.25 * g[i];
      m[i] = s.beta1 * m[i] + (1 - s.beta1) * scaled;
      v[i] = s.beta2 * v[i] + (1 - s.beta2) * scaled * scaled;
      const double m_hat = m[i] / (1 - std::pow(s.beta1, static_cast<double>(t)));
      const double v_hat = v[i] / (1 - std::pow(s.beta2, static_cast<double>(t)));
      p[i] = p[i] * (1 - s.learning_rate * s.weight_decay) - s.learning_rate * m_hat / (std::sqrt(v_hat) + s.epsilon);
    }
  }
  test::expect_close(
      master.values(), p, [&](size_t) { return 2e-6; }, "p");
  test::expect_close(
      first.values(), m, [&](size_t) { return 1e-7; }, "m");
  test::expect_close(
      second.values(), v, [&](size_t) { return 1e-7; }, "v");
}

/// Every operation rounded in the order that all devices share, so that they give the same bits.
TEST(Adamw, RoundsAsAgreed) {
  const int64_t n = 1003;
  const Values p0 = test::random_values(n, 1), m0 = test::random_values(n, 2), g0 = test::random_values(n, 3);
  Values v0 = test::random_values(n, 4);
  for (double& v : v0) v = std::fabs(v);
  const Array master(DType::f32, {n}, p0), m(DType::f32, {n}, m0), v(DType::f32, {n}, v0), g(DType::f32, {n}, g0);
  AdamwStep s = step(1);  // the corrections of 1 - beta remain
  s.gradient_scale = 0.3;
  const auto rounded = [](double x) { return static_cast<float>(x); };
  const Values g1 = g.values(), m1 = m.values(), v1 = v.values(), p1 = master.values();
  adamw_update(master, m, v, g, {}, s, test::stream());
  const Values p2 = master.values(), m2 = m.values(), v2 = v.values();
  int fused = 0;
  for (size_t i = 0; i < p1.size(); ++i) {
    // A double has enough digits that its rounding to float equals the operation in float.
    const double scale = rounded(0.3);
    const float gradient = rounded(g1[i] * scale), old = rounded(m1[i]);
    const float difference = rounded(double{gradient} - double{old});
    const float first = std::fma(rounded(1 - 0.9), difference, old);
    const float left = rounded(double{rounded(1 - 0.95)} * double{gradient});
    const float second = std::fma(left, gradient, rounded(v1[i] * double{rounded(0.95)}));
    const float root = rounded(std::sqrt(double{second}));
    const float quotient = rounded(double{root} / double{rounded(std::sqrt(1 - 0.95))});
    const float divisor = rounded(double{quotient} + double{rounded(1e-8)});
    const float dividend = rounded(double{rounded(-1e-2 / (1 - 0.9))} * double{first});
    const float value = std::fma(rounded(p1[i]), rounded(1 - 1e-2 * 0.1), rounded(double{dividend} / double{divisor}));
    EXPECT_EQ(m2[i], double{first}) << i;
    EXPECT_EQ(v2[i], double{second}) << i;
    EXPECT_EQ(p2[i], double{value}) << i;
    const float other = std::fma(rounded(1 - 0.9), rounded(g1[i] * scale - m1[i]), old);
    fused += static_cast<int>(other != first);
  }
  EXPECT_GT(fused, 0) << "control: a fused subtraction gives other bits";
}

TEST(Adamw, AnyCutGivesTheSameBits) {
  const int64_t n = 9999;
  const auto run = [&](const std::vector<int64_t>& borders) {
    const Array master(DType::f32, {n}, test::random_values(n, 1)), m(DType::f32, {n}), v(DType::f32, {n}),
        g(DType::f32, {n}, test::random_values(n, 2)), w(DType::bf16, {n});
    for (int64_t t = 1; t <= 2; ++t) {
      for (size_t b = 0; b + 1 < borders.size(); ++b) {
        const int64_t at = borders[b], count = borders[b + 1] - at;
        adamw_update(master.tensor().rows(at, count), m.tensor().rows(at, count), v.tensor().rows(at, count),
                     g.tensor().rows(at, count), w.tensor().rows(at, count), step(t), test::stream());
      }
    }
    Bytes all = master.bytes();
    const Bytes more = w.bytes();
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const Bytes whole = run({0, n});
  EXPECT_EQ(run({0, 1, 8, 13, 4099, 9990, n}), whole);
  EXPECT_NE(run({0, n - 1}), whole) << "control: one element left out";
}

TEST(Adamw, BitsDoNotDependOnThreads) {
  const int64_t n = 20001;
  test::expect_same_bits_for_threads([&](bool changed) {
    const Array master(DType::f32, {n}, test::random_values(n, 1)), m(DType::f32, {n}), v(DType::f32, {n}),
        g(DType::f32, {n}, test::random_values(n, changed ? 3 : 2));
    adamw_update(master, m, v, g, {}, step(1), test::stream());
    return master.bytes();
  });
}

}  // namespace
}  // namespace llmtrain
