#include "kernels/rope.hpp"

#include <gtest/gtest.h>

#include "harness/dtype_text.hpp"
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
    rope_table(table, frequencies().data(), 1, test::stream());
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
    for (int64_t r = 0; r < rows; ++r) {  // the last head is a value and does not change
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
  const double bound = dtype == DType::f32 ? 1e-4 : dtype == DType::bf16 ? 0.2 : 0.2 / 8;
  EXPECT_NEAR(left, right, bound);
  EXPECT_GT(std::fabs(left - unrotated), 10 * bound) << "control";
}

INSTANTIATE_TEST_SUITE_P(Types, Rope, testing::Values(DType::f32, DType::bf16, DType::f16));

TEST(RopeTable, IsRoundedOnce) {
  const Array table(DType::f32, {positions, head_dim});
  rope_table(table, frequencies().data(), 1, test::stream());
  Values expected;
  for (int64_t p = 0; p < positions; ++p) {
    for (int64_t i = 0; i < head_dim; ++i) {
      const double angle = static_cast<double>(p) * frequencies()[static_cast<size_t>(i % half)];
      expected.push_back(i < half ? std::cos(angle) : std::sin(angle));
    }
  }
  test::expect_close(table.values(), expected, [&](size_t i) { return 0x1.01p-24 * std::fabs(expected[i]); });
}

TEST(RopeTable, TakesAFactor) {
  const Array plain(DType::f32, {9, head_dim}), scaled(DType::f32, {9, head_dim});
  rope_table(plain, frequencies().data(), 1, test::stream());
  rope_table(scaled, frequencies().data(), 1.25, test::stream());
  Values expected = plain.values();
  for (double& v : expected) v *= 1.25;
  test::expect_close(scaled.values(), expected, [](size_t) { return 2e-7; });
}

// A table with fewer elements than a head leaves the head's last ones unchanged.
TEST(RopePartial, TurnsTheFirstElements) {
  constexpr int64_t turned = 8, n = 3;
  const std::vector<double> f = {1, 0.5, 0.25, 0.125};
  const Array table(DType::f32, {50, turned}), places(DType::i32, {n}, {4, 17, 49});
  rope_table(table, f.data(), 1, test::stream());
  const Array qkv(DType::f32, {n, width}, test::random_values(n * width, 1));
  Values expected = qkv.values();
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t h = 0; h < rotated; ++h) {
      for (int64_t i = 0; i < turned / 2; ++i) {
        const auto low = static_cast<size_t>(r * width + h * head_dim + i), high = low + turned / 2;
        const double angle = places.values()[static_cast<size_t>(r)] * f[static_cast<size_t>(i)];
        const double a = expected[low], b = expected[high];
        expected[low] = a * std::cos(angle) - b * std::sin(angle);
        expected[high] = b * std::cos(angle) + a * std::sin(angle);
      }
    }
  }
  rope_apply(qkv, table, places, rotated, head_dim, false, test::stream());
  test::expect_close(qkv.values(), expected, [](size_t) { return 3e-7; });
}

// With an odd width only the first row is aligned for larger accesses.
TEST(RopePlace, BitsDoNotDependOnThePlace) {
  constexpr int64_t n = 3, two_heads = 64;
  const Array table(DType::f32, {n, 32});
  rope_table(table, test::random_values(16, 3).data(), 1, test::stream());
  const auto widened = [](const Values& v) {
    Values out;
    for (int64_t r = 0; r < n; ++r) {
      out.insert(out.end(), v.begin() + r * two_heads, v.begin() + (r + 1) * two_heads);
      out.push_back(9);
    }
    return out;
  };
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Array packed(dtype, {n, two_heads}, test::random_values(n * two_heads, 2)), apart(dtype, {n, two_heads + 1});
    const Values in = packed.values();
    apart.set(widened(in));
    rope_apply(packed, table, Tensor(), 2, 32, false, test::stream());
    rope_apply(apart, table, Tensor(), 2, 32, false, test::stream());
    EXPECT_NE(packed.values(), in) << "control";
    EXPECT_EQ(apart.values(), widened(packed.values()));
  }
}

// Segments of 5, 12 and 9 tokens around a limit of 9: only the second one is long.
TEST(RopeByLengthTable, SegmentsHaveTheirOwnFrequencies) {
  constexpr int64_t n = 26, r = 6;
  const std::vector<double> near = {1, 0.3, 0.1}, far = {0.5, 0.2, 0.05};
  Values places;
  for (int64_t length : {5, 12, 9}) {
    for (int64_t t = 0; t < length; ++t) places.push_back(static_cast<double>(t));
  }
  const Array segments(DType::i32, {4}, {0, 5, 17, 26}), row_positions(DType::i32, {n}, places);
  Batch batch;
  batch.tokens = n;
  batch.segment_count = 3;
  batch.segments = segments;
  batch.positions = row_positions;
  for (const double ntk : {0.0, 3.0}) {
    const Array table(DType::f32, {n + 4, r});
    rope_table_by_length(table, {near.data(), far.data(), 9, ntk, 1.5}, batch, test::stream());
    const double stretch = ntk > 0 ? ntk * 12 / 9 - (ntk - 1) : 1;
    for (int64_t row = 0; row < n; ++row) {
      for (int64_t i = 0; i < 3; ++i) {
        const bool is_long = row >= 5 && row < 17;
        const double power = std::pow(stretch, -2.0 * static_cast<double>(i) / (r - 2));
        const double f = is_long ? far[static_cast<size_t>(i)] * power : near[static_cast<size_t>(i)];
        const double angle = places[static_cast<size_t>(row)] * f;
        ASSERT_NEAR(table.values()[static_cast<size_t>(row * r + i)], 1.5 * std::cos(angle), 2e-7);
        ASSERT_NEAR(table.values()[static_cast<size_t>(row * r + 3 + i)], 1.5 * std::sin(angle), 2e-7);
      }
    }
    // Rows of the table belong to rows of the batch.
    const Array qkv(DType::f32, {n, r}, Values(static_cast<size_t>(n * r), 1.0));
    rope_apply(qkv, table, Tensor(), 1, r, false, test::stream());
    const double c = table.values()[static_cast<size_t>(16 * r)], s = table.values()[static_cast<size_t>(16 * r + 3)];
    EXPECT_NEAR(qkv.values()[static_cast<size_t>(16 * r)], c - s, 1e-6);
  }
}

TEST(RopeThreads, BitsDoNotDependOnThreads) {
  Values p;
  for (int64_t r = 0; r < rows; ++r) p.push_back(static_cast<double>(position_of(r)));
  const Array places(DType::i32, {rows}, p);
  test::expect_same_bits_for_threads([&](bool changed) {
    const Array table(DType::f32, {positions, head_dim});
    rope_table(table, frequencies().data(), 1, test::stream());
    const Array qkv(DType::bf16, {rows, width}, test::random_values(rows * width, changed ? 4 : 5));
    rope_apply(qkv, table, places, rotated, head_dim, false, test::stream());
    return qkv.bytes();
  });
}

}  // namespace
}  // namespace llmtrain
