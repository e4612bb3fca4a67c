#include "kernels/momentum_update.hpp"

#include <gtest/gtest.h>

#include "kernels/kernel_test.hpp"

namespace llmtrain {
namespace {

using test::Array;
using test::Bytes;
using test::Values;

/// Rounds to fp32; a double has enough digits that this equals the operation in fp32.
float rounded(double x) { return static_cast<float>(x); }

struct State {
  Array master, momentum, gradient, weights;
  explicit State(int64_t n)
      : master(DType::f32, {n}, test::random_values(n, 1)),
        momentum(DType::f32, {n}, test::random_values(n, 2)),
        gradient(DType::f32, {n}, test::random_values(n, 3)),
        weights(DType::bf16, {n}) {}
  UpdateTensors part(int64_t begin, int64_t end) const {
    const auto of = [&](const Array& a) { return a.tensor().rows(begin, end - begin); };
    return {of(master), of(momentum), of(gradient), of(weights)};
  }
  Bytes bytes() const {
    Bytes all;
    for (const Array* a : {&master, &momentum, &weights}) {
      const Bytes more = a->bytes();
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }
};

constexpr int64_t n = 1003;
SgdStep sgd() { return {.learning_rate = 0.01, .momentum = 0.9, .weight_decay = 0.1, .gradient_scale = 0.3}; }
LionStep lion() { return {.learning_rate = 0.01, .weight_decay = 0.1, .gradient_scale = 0.3}; }

/// Every operation rounded in the order that all devices share, so that they give the same bits.
TEST(Momentum, RoundsAsAgreed) {
  for (const bool nesterov : {false, true}) {
    const State s(n);
    const Values p0 = s.master.values(), m0 = s.momentum.values(), g0 = s.gradient.values();
    SgdStep step = sgd();
    step.nesterov = nesterov;
    momentum_update(s.part(0, n), step, test::stream());
    const Values p1 = s.master.values(), m1 = s.momentum.values();
    int fused = 0;
    for (size_t i = 0; i < p0.size(); ++i) {
      const float p = rounded(p0[i]), g = rounded(g0[i] * double{rounded(0.3)});
      const float gradient = std::fma(p, rounded(0.1), g);
      const float kept = rounded(m0[i] * double{rounded(0.9)}), m = rounded(double{kept} + double{gradient});
      const float direction = nesterov ? std::fma(m, rounded(0.9), gradient) : m;
      EXPECT_EQ(m1[i], double{m}) << i;
      EXPECT_EQ(p1[i], double{std::fma(direction, rounded(-0.01), p)}) << i;
      fused += static_cast<int>(std::fma(rounded(m0[i]), rounded(0.9), gradient) != m);
    }
    EXPECT_GT(fused, 0) << "control: a fused sum gives other bits";
  }
  const State s(n);
  const Values p0 = s.master.values(), m0 = s.momentum.values(), g0 = s.gradient.values();
  momentum_update(s.part(0, n), lion(), test::stream());
  const Values p1 = s.master.values(), m1 = s.momentum.values();
  for (size_t i = 0; i < p0.size(); ++i) {
    const float g = rounded(g0[i] * double{rounded(0.3)}), m = rounded(m0[i]);
    const float direction = std::fma(g, rounded(1 - 0.9), rounded(double{m} * double{rounded(0.9)}));
    const float sign = direction > 0 ? 1.0F : -1.0F;
    const float p = rounded(p0[i] * double{rounded(1 - 0.01 * 0.1)});
    EXPECT_EQ(p1[i], double{std::fma(sign, rounded(-0.01), p)}) << i;
    EXPECT_EQ(m1[i], double{std::fma(g, rounded(1 - 0.99), rounded(double{m} * double{rounded(0.99)}))}) << i;
  }
}

TEST(Momentum, AnyCutGivesTheSameBits) {
  const auto run = [](const std::vector<int64_t>& borders, bool of_sgd) {
    const State s(n);
    for (size_t b = 0; b + 1 < borders.size(); ++b) {
      const UpdateTensors part = s.part(borders[b], borders[b + 1]);
      of_sgd ? momentum_update(part, sgd(), test::stream()) : momentum_update(part, lion(), test::stream());
    }
    return s.bytes();
  };
  for (const bool of_sgd : {false, true}) {
    EXPECT_EQ(run({0, 1, 8, 13, 499, n}, of_sgd), run({0, n}, of_sgd));
    EXPECT_NE(run({0, n - 1}, of_sgd), run({0, n}, of_sgd)) << "control: one element left out";
  }
}

TEST(Momentum, WithoutAStateFollowsTheGradient) {
  const State s(n);
  const Values p = s.master.values(), g = s.gradient.values();
  UpdateTensors tensors = s.part(0, n);
  tensors.momentum = {};
  momentum_update(tensors, SgdStep{.learning_rate = 0.5}, test::stream());
  const Values updated = s.master.values();
  for (size_t i = 0; i < p.size(); ++i) EXPECT_EQ(updated[i], double{rounded(p[i] - 0.5 * g[i])}) << i;
}

}  // namespace
}  // namespace llmtrain
