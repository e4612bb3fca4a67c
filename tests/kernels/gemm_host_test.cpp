#include <gtest/gtest.h>
#include <omp.h>

#include <thread>
#include <vector>

#include "harness/peak_memory.hpp"
#include "kernels/host/product/gemm.hpp"
#include "kernels/host/product/product_path.hpp"
#include "kernels/kernel_test.hpp"

namespace llmtrain {
namespace {

using host::GemmShape;
using host::ProductPath;
using test::Values;

Values transposed(const Values& v, int64_t rows, int64_t columns) {
  Values t(v.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      t[static_cast<size_t>(c * rows + r)] = v[static_cast<size_t>(r * columns + c)];
    }
  }
  return t;
}

class Gemm : public testing::TestWithParam<ProductPath> {
 protected:
  const host::ForcedProductPath path{GetParam()};

  /// sum[m, n] += left[m, k] right[k, n]
  static void add_product(Values& sum, const Values& left, const Values& right, int64_t k, int64_t n) {
    for (size_t i = 0; i < left.size(); ++i) {
      const auto row = static_cast<int64_t>(i) / k, inner = static_cast<int64_t>(i) % k;
      for (int64_t j = 0; j < n; ++j) {
        sum[static_cast<size_t>(row * n + j)] += left[i] * right[static_cast<size_t>(inner * n + j)];
      }
    }
  }

  /// Whole numbers, so that the result must be exact on every path.
  static void check(GemmShape s) {
    const Values a = test::random_integers(s.m * s.k, 11, 6), b = test::random_integers(s.k * s.n, 12, 6);
    const Values bias = test::random_integers(s.n, 13, 50), before = test::random_integers(s.m * s.n, 14, 50);
    Values expected(static_cast<size_t>(s.m * s.n));
    add_product(expected, a, b, s.k, s.n);
    const test::Array left(s.input, {s.m * s.k}, s.a_transposed ? transposed(a, s.m, s.k) : a);
    const test::Array right(s.input, {s.k * s.n}, s.b_transposed ? transposed(b, s.k, s.n) : b);
    const test::Array shift(s.bias_type, {s.n}, bias);
    test::Array result(s.output, {s.m, s.n}, before);
    const Values p = test::random_integers(s.m * s.rank, 15, 6), q = test::random_integers(s.rank * s.n, 16, 6);
    const test::Array added_left(s.input, {s.m * s.rank}, p);
    const test::Array added_right(s.input, {s.rank * s.n}, s.b_transposed ? transposed(q, s.rank, s.n) : q);
    add_product(expected, p, q, s.rank, s.n);
    gemm(s, {left.tensor().data, right.tensor().data, result.tensor().data, s.bias ? shift.tensor().data : nullptr,
             added_left.tensor().data, added_right.tensor().data});
    for (size_t i = 0; i < expected.size(); ++i) {
      if (s.accumulate) expected[i] += before[i];
      if (s.bias) expected[i] += bias[i % static_cast<size_t>(s.n)];
    }
    expected = test::Array(s.output, {s.m, s.n}, expected).values();  // rounded to the dtype
    EXPECT_TRUE(result.values() == expected)
        << s.m << " " << s.n << " " << s.k << " " << s.rank << " " << s.a_transposed << s.b_transposed << s.accumulate
        << s.bias << " " << name_of(s.input) << " " << name_of(s.output);
  }
};

TEST_P(Gemm, EveryFormIsExact) {
  struct Size {
    int64_t m, n, k;
  };
  for (const auto [m, n, k] : {Size{1, 1, 1}, Size{63, 65, 31}, Size{130, 70, 1029}, Size{200, 130, 64},
                               Size{9, 205, 64}, Size{130, 405, 1030}}) {
    for (const DType input : {DType::f32, DType::bf16, DType::f16}) {
      for (int flags = 0; flags < 8; ++flags) {
        GemmShape s{.m = m, .n = n, .k = k, .a_transposed = (flags & 1) != 0, .b_transposed = (flags & 2) != 0};
        s.input = input;
        s.bias_type = input;
        if ((flags & 4) == 0) {
          s.bias = true;
          s.output = input;
          check(s);
        } else {
          check(s);
          s.accumulate = true;
          check(s);
        }
        s.rank = s.a_transposed || input == DType::f16 ? 0 : flags == 0 ? 1 : 47;
        if (s.rank > 0) check(s);
      }
    }
  }
}

// More than a segment along k: partial sums of a bf16 result stay in shared memory between segments; A is packed in
// bands.
TEST_P(Gemm, LongInnerDimension) {
  for (const DType output : {DType::f32, DType::bf16, DType::f16}) {
    check({.m = 70, .n = 66, .k = 17001, .b_transposed = true, .input = DType::bf16, .output = output});
    check({.m = 70, .n = 66, .k = 9000, .rank = 32, .b_transposed = true, .input = DType::bf16, .output = output});
    check({.m = 150,
           .n = 66,
           .k = 9000,
           .a_transposed = true,
           .bias = output == DType::bf16,
           .input = DType::bf16,
           .output = output,
           .bias_type = DType::bf16});
  }
}

TEST_P(Gemm, ThreadsOfTheCallerDoNotMeet) {
  const GemmShape s{.m = 100, .n = 90, .k = 80};
  const test::Array a(DType::f32, {100, 80}, test::random_values(8000, 1));
  const test::Array b(DType::f32, {80, 90}, test::random_values(7200, 2));
  const test::Array alone(DType::f32, {100, 90});
  gemm(s, {a.tensor().data, b.tensor().data, alone.tensor().data});
  constexpr int callers = 4;
  std::vector<test::Array> results;
  results.reserve(callers);
  for (int i = 0; i < callers; ++i) results.emplace_back(DType::f32, std::initializer_list<int64_t>{100, 90});
  std::vector<std::thread> threads;
  threads.reserve(callers);
  for (const test::Array& result : results) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) gemm(s, {a.tensor().data, b.tensor().data, result.tensor().data});
    });
  }
  for (std::thread& t : threads) t.join();
  for (const test::Array& result : results) EXPECT_EQ(result.bytes(), alone.bytes());
  EXPECT_NE(test::Array(DType::f32, {100, 90}).bytes(), alone.bytes()) << "control";
}

TEST_P(Gemm, BitsDoNotDependOnThreads) {
  for (const DType input : {DType::f32, DType::bf16, DType::f16}) {
    for (const GemmShape& s : {GemmShape{.m = 150, .n = 200, .k = 2100, .a_transposed = true, .input = input},
                               GemmShape{.m = 70, .n = 3000, .k = 210, .b_transposed = true, .input = input}}) {
      const Values a = test::random_values(s.m * s.k, 21);
      const test::Array b(input, {s.k, s.n}, test::random_values(s.k * s.n, 22));
      test::expect_same_bits_for_threads([&](bool changed) {
        Values other = a;
        other[5] = changed ? 3 : other[5];
        const test::Array left(input, {s.k, s.m}, other);
        const test::Array result(DType::f32, {s.m, s.n});
        gemm(s, {left.tensor().data, b.tensor().data, result.tensor().data});
        return result.bytes();
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, Gemm,
                         testing::Values(ProductPath::automatic, ProductPath::native, ProductPath::wide,
                                         ProductPath::plain));

/// Texts have all lengths: kernels must not be created, and kept, for each.
TEST(GemmKernels, AreSharedByProductsThatDifferInTheirRows) {
  constexpr int64_t most = 600, width = 64;
  const std::vector<float> a(most * width, 1.0f), b(width * (width + 1), 1.0f);
  std::vector<float> c(most * (width + 1));
  const auto multiply = [&](int64_t rows, int64_t columns) {
    host::gemm({.m = rows, .n = columns, .k = width}, {a.data(), b.data(), c.data()});
  };
  for (int64_t rows = 1; rows <= 256; ++rows) multiply(rows, width);
  const int64_t before = test::resident_memory();
  for (int64_t rows = 257; rows <= most; ++rows) multiply(rows, width);
  const int64_t after = test::resident_memory();
  for (int64_t rows = 1; rows <= 256; ++rows) multiply(rows, width + 1);
  const int64_t of_kernels = test::resident_memory() - after;
  EXPECT_LT(after - before, of_kernels / 4) << "of them another width needs " << of_kernels << " bytes";
}

TEST(ProductPath, ThinProductsStayNativeAndForcedPathsAreTaken) {
  using host::product_kernels;
  const bool native = [] {
    const host::ForcedProductPath path(ProductPath::native);
    return product_kernels(DType::bf16, 4096).operands == DType::bf16;
  }();
  EXPECT_EQ(product_kernels(DType::bf16, 32).operands == DType::bf16, native);
  EXPECT_EQ(product_kernels(DType::bf16, 33).operands == DType::bf16, native && device_fast_bf16());
  EXPECT_EQ(product_kernels(DType::f32, 4096).operands, DType::f32);
  const bool micro = product_kernels(DType::f32, 4096).micro;
  {
    const host::ForcedProductPath path(ProductPath::wide);
    EXPECT_EQ(product_kernels(DType::bf16, 32).operands, DType::f32);
    EXPECT_EQ(product_kernels(DType::bf16, 32).micro, micro);
  }
  const host::ForcedProductPath path(ProductPath::plain);
  EXPECT_EQ(product_kernels(DType::bf16, 32).operands, DType::f32);
  EXPECT_FALSE(product_kernels(DType::f32, 4096).micro);
}

// Products of fractions: different paths round differently.
TEST(ProductPath, PathsDifferInTheLastBits) {
  const GemmShape s{.m = 70, .n = 80, .k = 600, .input = DType::bf16};
  const test::Array a(DType::bf16, {s.m, s.k}, test::random_values(s.m * s.k, 31));
  const test::Array b(DType::bf16, {s.k, s.n}, test::random_values(s.k * s.n, 32));
  const auto bytes = [&](ProductPath forced) {
    const host::ForcedProductPath path(forced);
    const test::Array result(DType::f32, {s.m, s.n});
    gemm(s, {a.tensor().data, b.tensor().data, result.tensor().data});
    return result.bytes();
  };
  const auto native = bytes(ProductPath::native), wide = bytes(ProductPath::wide);
  const host::ForcedProductPath path(ProductPath::native);
  EXPECT_EQ(native == wide, host::product_kernels(DType::bf16, s.m).operands == DType::f32);
}

}  // namespace
}  // namespace llmtrain
