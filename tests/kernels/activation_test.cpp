#include "kernels/activation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "harness/dtype_text.hpp"
#include "kernels/kernel_test.hpp"

namespace llmtrain {
namespace {

using test::Array;
using test::Values;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

constexpr float limit = 2.003f;  // of swiglu_oai; no half-precision number, where the slope would have two values

double naive(Activation a, double x) {
  switch (a) {
    case Activation::gelu:
    case Activation::geglu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::gelu_tanh:
    case Activation::geglu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::relu:
      return x > 0 ? x : 0;
    case Activation::silu:
    case Activation::swiglu:
      return x * sigmoid(x);
    case Activation::swiglu_oai:
      return std::min<double>(x, limit) * sigmoid(1.702 * std::min<double>(x, limit));
  }
  return 0;
}

/// y [N, F] of h [N, F] or [N, 2 F].
Values naive_forward(Activation a, const Values& h, int64_t rows, int64_t width) {
  const auto factor = [a](double up) {
    return a == Activation::swiglu_oai ? std::clamp<double>(up, -limit, limit) + 1 : up;
  };
  Values y;
  const int64_t stride = is_gated(a) ? 2 * width : width;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < width; ++i) {
      const size_t at = static_cast<size_t>(r * stride + i);
      y.push_back(naive(a, h[at]) * (is_gated(a) ? factor(h[at + static_cast<size_t>(width)]) : 1.0));
    }
  }
  return y;
}

class ActivationTest : public testing::TestWithParam<std::tuple<Activation, DType>> {
 protected:
  static constexpr int64_t rows = 7, width = 75;  // no multiple of a vector
  int64_t inner() const { return is_gated(std::get<0>(GetParam())) ? 2 * width : width; }
};

TEST_P(ActivationTest, ForwardAndBackwardAgreeWithDouble) {
  const Activation activation = std::get<0>(GetParam());
  const DType dtype = std::get<1>(GetParam());
  const Array h(dtype, {rows, inner()}, test::random_values(rows * inner(), 1, 6.0));
  const Array y(dtype, {rows, width});
  const Values x = h.values();
  activation_value(activation, y, h, test::stream(), limit);
  EXPECT_EQ(h.values(), x) << "untouched";
  const auto value = y.bytes();
  activation_forward(activation, y, h, test::stream(), limit);
  EXPECT_EQ(y.bytes(), value);
  const Values expected = naive_forward(activation, x, rows, width);
  const double unit = 4 * 0x1p-23 + test::rounding(dtype);
  test::expect_close(
      y.values(), expected, [&](size_t i) { return unit * std::fabs(expected[i]) + 1e-7; }, "y");

  const Array dy(dtype, {rows, width}, test::random_values(rows * width, 2));
  const Values weights = dy.values();
  const Values gradient =
      test::numeric_gradient([&](const Values& v) { return naive_forward(activation, v, rows, width); }, x, weights);
  const auto bound = [&](size_t i) {
    return (4e-6 + 2 * test::rounding(dtype)) * (std::fabs(gradient[i]) + 1e-2) + 1e-8;
  };
  const Array dh(dtype, {rows, inner()});
  activation_backward(dh, dy, h, test::stream());
  test::expect_close(dh.values(), gradient, bound, "dh");
  const auto apart = dh.bytes();
  activation_backward(h, dy, h, test::stream());  // in place
  EXPECT_EQ(h.bytes(), apart);
}

TEST_P(ActivationTest, BitsDoNotDependOnThreads) {
  const auto [activation, dtype] = GetParam();
  const int64_t n = 200;
  test::expect_same_bits_for_threads([&, a = activation, d = dtype](bool changed) {
    const Array h(d, {n, inner()}, test::random_values(n * inner(), changed ? 4 : 3, 6.0));
    const Array y(d, {n, width});
    const Array dy(d, {n, width}, test::random_values(n * width, 5));
    activation_forward(a, y, h, test::stream());
    activation_backward(h, dy, h, test::stream());
    auto bytes = y.bytes();
    const auto more = h.bytes();
    bytes.insert(bytes.end(), more.begin(), more.end());
    return bytes;
  });
}

// Element i has the same bits whether the vector loop or its remainder computes it.
TEST_P(ActivationTest, BitsDoNotDependOnThePlace) {
  const auto [activation, dtype] = GetParam();
  const Array one(dtype, {1, inner()}, test::random_values(inner(), 6, 3.0));
  const Array y(dtype, {1, width});
  const Values x = one.values();
  activation_forward(activation, y, one, test::stream());
  const Values all = y.values();
  for (int64_t i = 0; i < width; ++i) {
    const auto at = static_cast<size_t>(i);
    Values single{x[at]};
    if (is_gated(activation)) single.push_back(x[at + static_cast<size_t>(width)]);
    const Array h1(dtype, {1, static_cast<int64_t>(single.size())}, single);
    const Array y1(dtype, {1, 1});
    activation_forward(activation, y1, h1, test::stream());
    EXPECT_EQ(y1.values()[0], all[at]) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, ActivationTest,
                         testing::Combine(testing::Values(Activation::gelu, Activation::gelu_tanh, Activation::relu,
                                                          Activation::silu, Activation::swiglu, Activation::geglu,
                                                          Activation::geglu_tanh, Activation::swiglu_oai),
                                          testing::Values(DType::f32, DType::bf16, DType::f16)));

TEST(Activation, ALimitIsInsideAndItsAbsenceIsSeen) {
  const Values inputs = {limit, 3, 1, 1, /**/ 1, 1, -limit, -3};  // gates, then the others
  const auto slopes = [&](float most) {
    const Array h(DType::f32, {1, 8}, inputs), y(DType::f32, {1, 4});
    activation_forward(Activation::swiglu_oai, y, h, test::stream(), most);
    return h.values();
  };
  const Values limited = slopes(limit), unlimited = slopes(0);
  EXPECT_NE(limited[0], 0) << "the gate is at its limit";
  EXPECT_EQ(limited[1], 0) << "beyond it";
  EXPECT_NE(limited[6], 0);
  EXPECT_EQ(limited[7], 0);
  EXPECT_NE(unlimited[1], 0);
  EXPECT_NE(unlimited[7], 0);
  const Array bad(DType::f32, {1, 2}, {std::nan(""), 1}), out(DType::f32, {1, 1});
  activation_forward(Activation::swiglu_oai, out, bad, test::stream(), limit);
  EXPECT_TRUE(std::isnan(out.values()[0]));
}

TEST(Activation, ExtremesAndNaN) {
  const Array y(DType::f32, {1, 4});
  for (const Activation a : {Activation::gelu, Activation::gelu_tanh, Activation::relu, Activation::silu}) {
    const Array h(DType::f32, {1, 4}, {100, -100, 1e30, -1e30});
    activation_forward(a, y, h, test::stream());
    const Values v = y.values();
    EXPECT_EQ(v[0], 100);
    EXPECT_EQ(std::fabs(v[1]) < 1e-30, true) << v[1];
    EXPECT_EQ(v[2], static_cast<double>(1e30f));
    EXPECT_EQ(v[3], 0);
    const Array bad(DType::f32, {1, 1}, {std::nan("")});
    const Array out(DType::f32, {1, 1});
    activation_forward(a, out, bad, test::stream());
    EXPECT_TRUE(std::isnan(out.values()[0]));
  }
}

TEST(Activation, RefusesWrongShapes) {
  const Array h(DType::f32, {3, 8}), y(DType::f32, {3, 4});
  EXPECT_THROW(activation_forward(Activation::gelu, y, h, test::stream()), Error);
  EXPECT_NO_THROW(activation_forward(Activation::swiglu, y, h, test::stream()));
  EXPECT_NO_THROW(activation_backward(h, y, h, test::stream()));
  EXPECT_THROW(activation_backward(y, y, h, test::stream()), Error);
}

}  // namespace
}  // namespace llmtrain
