#include "kernels/rope.hpp"

#include <gtest/gtest.h>

#include "kernels/kernel_test.hpp"

namespace llmtrain {
namespace {

using test::Array;
using test::Values;

constexpr int64_t rows = 21, heads = 5, rotated = 4, head_dim = 12, half = head_dim / 2, width = heads * head_dim;
constexpr int64_t positions = 300;

std::vector<double> frequencies() {
  std::vector<double> f;
  for (int64_t i = 0; i < half; ++i) f.push_back(std::pow(10000.0, -2.0 * static_cast<double>(i) / head_dim));
  return f;
}

int64_t position_of(int64_t row) { return row * 13 % positions; }

/// Each pair (i, i + D/2) as a complex number times e^(i angle).
Values naive(const Values& in, double direction) {
  Values out = in;
  const std::vector<double> f = frequencies();
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t h = 0; h < rotated; ++h) {
      for (int64_t i = 0; i < half; ++i) {
        const auto low = static_cast<size_t>(r * width + h * head_dim + i), high = low + static_cast<size_t>(half);
        const double angle = direction * static_cast<double>(position_of(r)) * f[static_cast<size_t>(i)];
        out[low] = in[low] * std::cos(angle) - in[high] * std::sin(angle);
        out[high] = in[high] * std::cos(angle) + in[low] * std::sin(angle);
      }
    }
  }
  return out;
}

class Rope : public testing::TestWithParam<DType> {
 protected:
  Rope() {
    rope_table(table, frequencies().data(), test::stream());
    Values p;
    for (int64_t r = 0; r < rows; ++r) p.push_back(static_cast<double>(position_of(r)));
    places.set(p);
  }
  Array table{DType::f32, {positions, head_dim}};
  Array places{DType::i32, {rows}};
};

TEST_P(Rope, RotatesQueriesAndKeys) {
  const DType dtype = GetParam();
  Array qkv(dtype, {rows, width}, test::random_values(rows * width, 1));
  const Values in = qkv.values();
  const auto bound = [&](const Values& expected) {
    return [&, dtype](size_t i) { return test::rounding(dtype) * std::fabs(expected[i]) + 3e-7; };
  };
  for (const bool inverse : {false, true}) {
    qkv.set(in);
    rope_apply(qkv, table, places, rotated, head_dim, inverse, test::stream());
    const Values expected = naive(in, inverse ? -1 : 1);
    test::expect_close(qkv.values(), expected, bound(expected));
    EXPECT_NE(qkv.values(), in) << "control";
    for (int64_t r = 0; r < rows; ++r) {  // the last head is a value, left alone
      for (int64_t c = rotated * head_dim; c < width; ++c) {
        const auto at = static_cast<size_t>(r * width + c);
        EXPECT_EQ(qkv.values()[at], in[at]);
      }
    }
  }
}

// <R x, y> = <x, R^-1 y>: the inverse is the transpose, which is what the backward pass needs.
TEST_P(Rope, InverseIsTheTranspose) {
  const DType dtype = GetParam();
  const Array x(dtype, {rows, width}, test::random_values(rows * width, 2));
  const Array y(dtype, {rows, width}, test::random_values(rows * width, 3));
  const Values x0 = x.values(), y0 = y.values();
  rope_apply(x, table, places, rotated, head_dim, false, test::stream());
  rope_apply(y, table, places, rotated, head_dim, true, test::stream());
  double left = 0, right = 0, unrotated = 0;
  for (size_t i = 0; i < x0.size(); ++i) {
    left += x.values()[i] * y0[i];
    right += x0[i] * y.values()[i];
    unrotated += x0[i] * y0[i];
  }
  const double bound = dtype == DType::bf16 ? 0.2 : 1e-4;
  EXPECT_NEAR(left, right, bound);
  EXPECT_GT(std::fabs(left - unrotated), 10 * bound) << "control";
}

INSTANTIATE_TEST_SUITE_P(Types, Rope, testing::Values(DType::f32, DType::bf16));

TEST(RopeTable, IsRoundedOnce) {
  const Array table(DType::f32, {positions, head_dim});
  rope_table(table, frequencies().data(), test::stream());
  Values expected;
  for (int64_t p = 0; p < positions; ++p) {
    for (int64_t i = 0; i < head_dim; ++i) {
      const double angle = static_cast<double>(p) * frequencies()[static_cast<size_t>(i % half)];
      expected.push_back(i < half ? std::cos(angle) : std::sin(angle));
    }
  }
  test::expect_close(table.values(), expected, [&](size_t i) { return 0x1.01p-24 * std::fabs(expected[i]); });
}

TEST(RopeThreads, BitsDoNotDependOnThreads) {
  Values p;
  for (int64_t r = 0; r < rows; ++r) p.push_back(static_cast<double>(position_of(r)));
  const Array places(DType::i32, {rows}, p);
  test::expect_same_bits_for_threads([&](bool changed) {
    const Array table(DType::f32, {positions, head_dim});
    rope_table(table, frequencies().data(), test::stream());
    const Array qkv(DType::bf16, {rows, width}, test::random_values(rows * width, changed ? 4 : 5));
    rope_apply(qkv, table, places, rotated, head_dim, false, test::stream());
    return qkv.bytes();
  });
}

}  // namespace
}  // namespace llmtrain
