#include "kernels/norm.hpp"

#include <gtest/gtest.h>

#include <tuple>

#include "harness/dtype_text.hpp"
#include "harness/errors.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/kernel_test.hpp"

namespace llmtrain {
namespace {

using test::Array;
using test::Values;

constexpr double epsilon = 1e-5;

/// y of x [N, C]; parameters are weight, then bias (empty: none).
Values naive(NormKind kind, const Values& x, const Values& weight, const Values& bias, double offset = 0) {
  const size_t c = weight.size();
  Values y(x.size());
  for (size_t row = 0; row < x.size(); row += c) {
    double mean = 0, squares = 0;
    for (size_t i = 0; i < c; ++i) mean += x[row + i] / static_cast<double>(c);
    if (kind == NormKind::rmsnorm) mean = 0;
    for (size_t i = 0; i < c; ++i) squares += (x[row + i] - mean) * (x[row + i] - mean) / static_cast<double>(c);
    const double rstd = 1 / std::sqrt(squares + epsilon);
    for (size_t i = 0; i < c; ++i)
      y[row + i] = (x[row + i] - mean) * rstd * (offset + weight[i]) + (bias.empty() ? 0 : bias[i]);
  }
  return y;
}

struct Case {
  NormKind kind;
  DType weights;
  DType activations;
  int64_t rows, channels;
};

class Norm : public testing::TestWithParam<std::tuple<NormKind, DType, DType, std::pair<int64_t, int64_t>>> {
 protected:
  Norm() {
    const auto& [kind, weights, activations, shape] = GetParam();
    c_ = {kind, weights, activations, shape.first, shape.second};
    const auto [n, w] = shape;
    Values offset = test::random_values(n * w, 1, 2.0);
    for (double& v : offset) v += 3;  // a mean that matters
    x = Array(DType::f32, {n, w}, offset);
    Values near_one = test::random_values(w, 2, 0.5);
    for (double& v : near_one) v += 1;
    weight = Array(weights, {w}, near_one);
    if (kind == NormKind::layernorm) bias = Array(weights, {w}, test::random_values(w, 3));
    y = Array(activations, {n, w});
    dy = Array(activations, {n, w}, test::random_values(n * w, 4));
    mean = Array(DType::f32, {n});
    rstd = Array(DType::f32, {n});
  }
  void SetUp() override {
    if (!test::do_mix(std::get<1>(GetParam()), std::get<2>(GetParam()))) GTEST_SKIP() << "no kernel takes both types";
  }
  void forward() const { norm_forward({c_.kind, y, mean, rstd, x, weight, bias, epsilon}, test::stream()); }
  NormBackward backward_args() const {
    NormBackward a{};
    a.kind = c_.kind;
    a.dy = dy;
    a.x = x;
    a.weight = weight;
    a.mean = mean;
    a.rstd = rstd;
    return a;
  }
  Values bias_values() const { return bias.tensor().empty() ? Values{} : bias.values(); }

  Case c_{};
  Array x, weight, bias, y, dy, mean, rstd;
};

TEST_P(Norm, ForwardAgreesWithDouble) {
  forward();
  const Values expected = naive(c_.kind, x.values(), weight.values(), bias_values());
  test::expect_close(y.values(), expected,
                     [&](size_t i) { return 4e-6 + test::rounding(c_.activations) * (std::fabs(expected[i]) + 1e-5); });
}

TEST_P(Norm, BackwardAgreesWithFiniteDifferences) {
  forward();
  const int64_t n = c_.rows, w = c_.channels;
  const Array dx(DType::f32, {n, w}), dweight(DType::f32, {w}), dbias(DType::f32, {w});
  NormBackward a = backward_args();
  a.dx = dx;
  a.dweight = dweight;
  if (c_.kind == NormKind::layernorm) a.dbias = dbias;
  norm_backward(a, test::stream());
  const Values xs = x.values(), ws = weight.values(), bs = bias_values(), d = dy.values();
  const auto close = [&](const Array& actual, const Values& expected, double scale, const char* what) {
    test::expect_close(
        actual.values(), expected, [&](size_t) { return 3e-6 * scale; }, what);
  };
  Values gx = test::numeric_gradient([&](const Values& v) { return naive(c_.kind, v, ws, bs); }, xs, d);
  Values gw = test::numeric_gradient([&](const Values& v) { return naive(c_.kind, xs, v, bs); }, ws, d);
  const double row_scale = 3 * std::sqrt(static_cast<double>(n));
  const double dx_scale = w == 1 ? 1 / std::sqrt(epsilon) : 1;  // rstd, if a row has no variance
  close(dx, gx, dx_scale, "dx");
  close(dweight, gw, row_scale, "dweight");
  Values gb;
  if (c_.kind == NormKind::layernorm) {
    gb = test::numeric_gradient([&](const Values& v) { return naive(c_.kind, xs, ws, v); }, bs, d);
    close(dbias, gb, row_scale, "dbias");
  }
  // Accumulates a second time.
  a.accumulate_dx = a.accumulate_params = true;
  norm_backward(a, test::stream());
  for (Values* g : {&gx, &gw, &gb}) {
    for (double& v : *g) v *= 2;
  }
  close(dx, gx, 2 * dx_scale, "dx accumulated");
  close(dweight, gw, 2 * row_scale, "dweight accumulated");
  if (!gb.empty()) close(dbias, gb, 2 * row_scale, "dbias accumulated");
}

INSTANTIATE_TEST_SUITE_P(All, Norm,
                         testing::Combine(testing::Values(NormKind::layernorm, NormKind::rmsnorm),
                                          testing::Values(DType::f32, DType::bf16, DType::f16),
                                          testing::Values(DType::f32, DType::bf16, DType::f16),
                                          testing::Values(std::pair<int64_t, int64_t>{3, 1},
                                                          std::pair<int64_t, int64_t>{2, 13},
                                                          std::pair<int64_t, int64_t>{37, 40})));

// Weights as their distance from 1.
TEST(NormOffset, StandsForALargerWeight) {
  const int64_t n = 9, w = 20;
  for (const NormKind kind : {NormKind::rmsnorm, NormKind::layernorm}) {
    const Array x(DType::f32, {n, w}, test::random_values(n * w, 1, 2.0));
    const Array weight(DType::f32, {w}, test::random_values(w, 2, 0.5)), bias(DType::f32, {w});
    const Array y(DType::f32, {n, w}), mean(DType::f32, {n}), rstd(DType::f32, {n});
    const Array dy(DType::f32, {n, w}, test::random_values(n * w, 4));
    norm_forward({kind, y, mean, rstd, x, weight, bias, epsilon, 1.0f}, test::stream());
    const auto f = [&](const Values& v) { return naive(kind, v, weight.values(), {}, 1); };
    test::expect_close(y.values(), f(x.values()), [](size_t) { return 4e-6; });

    const Array dx(DType::f32, {n, w}), dweight(DType::f32, {w}), dbias(DType::f32, {w});
    NormBackward a{kind, dx, dweight, dbias, dy, x, weight, mean, rstd};
    a.weight_offset = 1;
    norm_backward(a, test::stream());
    const Values slope = test::numeric_gradient(f, x.values(), dy.values());
    test::expect_close(dx.values(), slope, [](size_t) { return 3e-6; });
    a.weight_offset = 0;  // control
    norm_backward(a, test::stream());
    double wrong = 0;
    for (size_t i = 0; i < slope.size(); ++i) wrong = test::larger(wrong, std::fabs(dx.values()[i] - slope[i]));
    EXPECT_GT(wrong, 1e-2);
  }
}

// Rows that fit registers, rows that fit shared memory and longer ones; so many that a block sums in several rounds.
class LongNorm : public testing::TestWithParam<std::tuple<NormKind, int64_t>> {};

TEST_P(LongNorm, AgreesWithDouble) {
  const auto [kind, w] = GetParam();
  const int64_t n = 43;
  const Array x(DType::f32, {n, w}, test::random_values(n * w, 1, 2.0));
  const Array weight(DType::f32, {w}, test::random_values(w, 2)), bias(DType::f32, {w}, test::random_values(w, 3));
  const Array dy(DType::f32, {n, w}, test::random_values(n * w, 4));
  const Array y(DType::f32, {n, w}), mean(DType::f32, {n}), rstd(DType::f32, {n});
  norm_forward({kind, y, mean, rstd, x, weight, bias, epsilon}, test::stream());
  const Values xs = x.values(), ws = weight.values(), d = dy.values();
  test::expect_close(y.values(), naive(kind, xs, ws, bias.values()), [](size_t) { return 4e-6; });

  const Array dx(DType::f32, {n, w}), dweight(DType::f32, {w}), dbias(DType::f32, {w});
  norm_backward({kind, dx, dweight, dbias, dy, x, weight, mean, rstd}, test::stream());
  const auto c = static_cast<size_t>(w);
  const Values normed = naive(kind, xs, Values(c, 1.0), {}), scales = rstd.values();
  Values slope(xs.size()), weight_slope(c), bias_slope(c);
  for (size_t row = 0; row < xs.size(); row += c) {
    double g_mean = 0, gh_mean = 0;
    for (size_t i = 0; i < c; ++i) {
      const double g = d[row + i] * ws[i], h = normed[row + i];
      if (kind == NormKind::layernorm) g_mean += g / static_cast<double>(w);
      gh_mean += g * h / static_cast<double>(w);
      weight_slope[i] += d[row + i] * h;
      bias_slope[i] += d[row + i];
    }
    for (size_t i = 0; i < c; ++i)
      slope[row + i] = scales[row / c] * (d[row + i] * ws[i] - g_mean - normed[row + i] * gh_mean);
  }
  test::expect_close(
      dx.values(), slope, [](size_t) { return 3e-6; }, "dx");
  test::expect_close(
      dweight.values(), weight_slope, [](size_t) { return 2e-5; }, "dweight");
  test::expect_close(
      dbias.values(), bias_slope, [](size_t) { return 2e-5; }, "dbias");
}

INSTANTIATE_TEST_SUITE_P(All, LongNorm,
                         testing::Combine(testing::Values(NormKind::layernorm, NormKind::rmsnorm),
                                          testing::Values(1000, 1025, 2050, 4096, 6336, 6337)));

// Norms before or after a sum of the residual stream: the bits of two separate calls.
class ResidualNorm : public testing::TestWithParam<std::tuple<NormKind, DType, int64_t, bool>> {
 protected:
  static constexpr int64_t rows = 45, length = 20;
};

TEST_P(ResidualNorm, HasTheBitsOfTheCallsThatItStandsFor) {
  const auto [kind, dtype, w, drops] = GetParam();
  const test::TestBatch batch(rows, length, 10, 1);
  const Dropout dropout = drops ? Dropout{0.25f, 77} : Dropout{};
  const Array in(DType::f32, {rows, w}, test::random_values(rows * w, 1, 2.0));
  const Array delta(dtype, {rows, w}, test::random_values(rows * w, 2)), weight(dtype, {w}, test::random_values(w, 3));
  const Array dy(dtype, {rows, w}, test::random_values(rows * w, 4)), x(DType::f32, {rows, w});
  const Array y(dtype, {rows, w}), mean(DType::f32, {rows}), rstd(DType::f32, {rows});
  const Array dweight(DType::f32, {w}), dbias(DType::f32, {w}), ddelta(dtype, {rows, w});
  Array dx(DType::f32, {rows, w});
  const NormForward forward{kind, y, mean, rstd, x, weight, Tensor(), epsilon};
  NormBackward backward{kind, dx, dweight, dbias, dy, x, weight, mean, rstd};
  backward.accumulate_dx = true;
  const Values before = test::random_values(rows * w, 5);
  const auto run = [&](bool fused, const Dropout& d) {
    dx.set(before);
    if (fused) {
      residual_norm_forward(forward, in, {delta, batch, d}, test::stream());
      residual_norm_backward(backward, {ddelta, batch, d}, test::stream());
    } else {
      residual_add(x, in, delta, batch, d, test::stream());
      norm_forward(forward, test::stream());
      norm_backward(backward, test::stream());
      residual_add_backward(ddelta, dx, batch, d, test::stream());
    }
    test::Bytes all;
    for (const Array* a : std::initializer_list<const Array*>{&x, &y, &rstd, &dx, &dweight, &dbias, &ddelta}) {
      const test::Bytes bytes = a->bytes();
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
  };
  const test::Bytes expected = run(false, dropout);
  EXPECT_EQ(run(true, dropout), expected);
  EXPECT_NE(run(true, Dropout{0.5f, 78}), expected) << "control";
}

// Rows of part of a register's width, of registers, of shared memory, and too long for that.
INSTANTIATE_TEST_SUITE_P(All, ResidualNorm,
                         testing::Combine(testing::Values(NormKind::layernorm, NormKind::rmsnorm),
                                          testing::Values(DType::f32, DType::bf16), testing::Values(7, 768, 2052, 6338),
                                          testing::Bool()));

TEST(NormThreads, BitsDoNotDependOnThreads) {
  const int64_t n = 333, w = 100;
  const Array weight(DType::bf16, {w}, test::random_values(w, 2)), bias(DType::bf16, {w}, test::random_values(w, 3));
  const Array dy(DType::bf16, {n, w}, test::random_values(n * w, 4));
  test::expect_same_bits_for_threads([&](bool changed) {
    const Array x(DType::f32, {n, w}, test::random_values(n * w, changed ? 6 : 5));
    const Array y(DType::bf16, {n, w}), mean(DType::f32, {n}), rstd(DType::f32, {n});
    const Array dx(DType::f32, {n, w}), dweight(DType::f32, {w}), dbias(DType::f32, {w});
    norm_forward({NormKind::layernorm, y, mean, rstd, x, weight, bias, epsilon}, test::stream());
    NormBackward a{NormKind::layernorm, dx, dweight, dbias, dy, x, weight, mean, rstd};
    norm_backward(a, test::stream());
    test::Bytes all;
    for (const Array* part : {&y, &mean, &rstd, &dx, &dweight, &dbias}) {
      const auto bytes = part->bytes();
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
  });
}

}  // namespace
}  // namespace llmtrain
