#include "kernels/matmul.hpp"

#include <gtest/gtest.h>

#include <tuple>

#include "harness/dtype_text.hpp"
#include "kernels/kernel_test.hpp"

namespace llmtrain {
namespace {

using test::Array;
using test::Bytes;
using test::Values;

/// y = x w^T in double, and |x| |w|^T for error bounds.
struct Product {
  Values value;
  Values magnitude;
};

enum class Form { forward, input, weight };

Product naive(Form form, const Values& a, const Values& b, int64_t n, int64_t m, int64_t k) {
  // forward: a = x[n,k], b = w[m,k] -> [n,m]; input: a = dy[n,m], b = w[m,k] -> [n,k]; weight: a = dy[n,m], b = x[n,k]
  const int64_t rows = form == Form::weight ? m : n;
  const int64_t columns = form == Form::forward ? m : k;
  const int64_t inner = form == Form::forward ? k : form == Form::input ? m : n;
  Product p{Values(static_cast<size_t>(rows * columns)), Values(static_cast<size_t>(rows * columns))};
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < inner; ++i) {
      const double left = a[static_cast<size_t>(form == Form::weight ? i * m + r : r * inner + i)];
      for (int64_t c = 0; c < columns; ++c) {
        const double right = b[static_cast<size_t>(form == Form::forward ? c * k + i : i * k + c)];
        p.value[static_cast<size_t>(r * columns + c)] += left * right;
        p.magnitude[static_cast<size_t>(r * columns + c)] += std::fabs(left * right);
      }
    }
  }
  return p;
}

struct Shape {
  int64_t n, m, k;
};
// Decoding, odd sizes, less than a tile, borders in every direction, several k-blocks (the last one odd).
constexpr Shape shapes[] = {{1, 48, 33},    {4, 70, 64},    {5, 3, 2},     {8, 130, 257},  {9, 7, 5},
                            {97, 48, 33},   {64, 64, 64},   {33, 97, 129}, {130, 200, 66}, {257, 191, 130},
                            {40, 65, 2083}, {70, 2083, 40}, {2083, 40, 70}};

/// Runs one product; returns the result.
Array run(Form form, const Shape& s, DType in, DType out, const Values& a, const Values& b, const Values* bias,
          const Values* before) {
  const auto [n, m, k] = s;
  const Array left = form == Form::forward ? Array(in, {n, k}, a) : Array(in, {n, m}, a);
  const Array right = form == Form::weight ? Array(in, {n, k}, b) : Array(in, {m, k}, b);
  Array result = form == Form::forward ? Array(out, {n, m})
                 : form == Form::input ? Array(out, {n, k})
                                       : Array(out, {m, k});
  if (before != nullptr) result.set(*before);
  const bool accumulate = before != nullptr;
  const Array shift = bias != nullptr ? Array(in, {m}, *bias) : Array();
  if (form == Form::forward) linear_forward(result, left, right, shift, test::stream());
  if (form == Form::input) linear_backward_input(result, left, right, accumulate, test::stream());
  if (form == Form::weight) linear_backward_weight(result, left, right, accumulate, test::stream());
  return result;
}

class Matmul : public testing::TestWithParam<std::tuple<Form, DType>> {};

// Small whole numbers: every sum is exact in fp32, so any wrong, missing or doubled term shows.
TEST_P(Matmul, IsExactOnWholeNumbers) {
  const auto [form, in] = GetParam();
  uint64_t seed = 1;
  for (const Shape& s : shapes) {
    const auto [n, m, k] = s;
    const Values a = test::random_integers(form == Form::forward ? n * k : n * m, ++seed, 8);
    const Values b = test::random_integers(form == Form::weight ? n * k : m * k, ++seed, 8);
    const Product expected = naive(form, a, b, n, m, k);
    const std::string name = std::to_string(n) + " " + std::to_string(m) + " " + std::to_string(k);
    EXPECT_EQ(run(form, s, in, DType::f32, a, b, nullptr, nullptr).tensor().numel(),
              static_cast<int64_t>(expected.value.size()));
    EXPECT_TRUE(run(form, s, in, DType::f32, a, b, nullptr, nullptr).values() == expected.value) << name;
    if (form == Form::forward) {
      const Values bias = test::random_integers(m, ++seed, 100);
      Values shifted = expected.value;
      for (size_t i = 0; i < shifted.size(); ++i) shifted[i] += bias[i % static_cast<size_t>(m)];
      EXPECT_TRUE(run(form, s, in, DType::f32, a, b, &bias, nullptr).values() == shifted) << name << " bias";
      EXPECT_FALSE(shifted == expected.value) << "control";
    } else {
      const Values before = test::random_integers(static_cast<int64_t>(expected.value.size()), ++seed, 1000);
      Values sum = expected.value;
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += before[i];
      EXPECT_TRUE(run(form, s, in, DType::f32, a, b, nullptr, &before).values() == sum) << name << " accumulated";
    }
  }
}

TEST_P(Matmul, IsAccurateAndRoundsOnce) {
  const auto [form, in] = GetParam();
  uint64_t seed = 100;
  for (const Shape& s : shapes) {
    const auto [n, m, k] = s;
    const int64_t inner = form == Form::forward ? k : form == Form::input ? m : n;
    const Values raw_a = test::random_values(form == Form::forward ? n * k : n * m, ++seed);
    const Values raw_b = test::random_values(form == Form::weight ? n * k : m * k, ++seed);
    const Values a = Array(in, {static_cast<int64_t>(raw_a.size())}, raw_a).values();
    const Values b = Array(in, {static_cast<int64_t>(raw_b.size())}, raw_b).values();
    const Product expected = naive(form, a, b, n, m, k);
    for (const DType out : {DType::f32, in}) {
      if (form == Form::weight && out != DType::f32) continue;
      const Values actual = run(form, s, in, out, a, b, nullptr, nullptr).values();
      // inner * 2^-24 * sum |a b| bounds any order of summation (Higham 2002, section 3.1).
      test::expect_close(actual, expected.value, [&](size_t i) {
        const double sums = static_cast<double>(inner) * 0x1p-24 * expected.magnitude[i];
        return sums + test::rounding(out) * (std::fabs(expected.value[i]) + sums);
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, Matmul,
                         testing::Combine(testing::Values(Form::forward, Form::input, Form::weight),
                                          testing::Values(DType::f32, DType::bf16, DType::f16)));

/// Calls check(result without added product, result with it, sum of both in double) for a forward product and an
/// input's gradient of every size; `scale` multiplies the added product's right operand.
template <class Check>
void add_products(DType in, DType out, double scale, const Check& check) {
  for (const Form form : {Form::forward, Form::input}) {
    for (const auto& [n, m, k] : {Shape{1, 48, 33}, Shape{4, 70, 64}, Shape{9, 7, 5}, Shape{130, 200, 66}}) {
      for (const int64_t rank : {1, 24}) {
        const int64_t inner = form == Form::forward ? k : m, columns = form == Form::forward ? m : k;
        const Values a = test::random_integers(n * inner, 41, 8), b = test::random_integers(m * k, 42, 8);
        const Values left = test::random_integers(n * rank, 43, 8);
        Values right = test::random_integers(rank * columns, 44, 8);
        for (double& v : right) v *= scale;
        Values expected = naive(form, a, b, n, m, k).value;
        const Values added = form == Form::forward ? naive(form, left, right, n, m, rank).value
                                                   : naive(form, left, right, n, rank, k).value;
        for (size_t i = 0; i < expected.size(); ++i) expected[i] += added[i];
        const Array from(in, {n, inner}, a), weights(in, {m, k}, b), l(in, {n, rank}, left);
        const Array r = form == Form::forward ? Array(in, {m, rank}, right) : Array(in, {rank, k}, right);
        const Array plain(out, {n, columns}), sum(out, {n, columns});
        const LowRank product{l, r};
        if (form == Form::forward) {
          linear_forward(plain, from, weights, {}, test::stream());
          linear_forward(sum, from, weights, {}, test::stream(), ProductRole::training, product);
        } else {
          linear_backward_input(plain, from, weights, false, test::stream());
          linear_backward_input(sum, from, weights, false, test::stream(), product);
        }
        check(plain, sum, expected);
      }
    }
  }
}

TEST(MatmulWithAnAddedProduct, IsExactOnWholeNumbers) {
  for (const DType in : {DType::f32, DType::bf16, DType::f16}) {
    add_products(in, DType::f32, 1, [](const Array& plain, const Array& sum, const Values& expected) {
      EXPECT_TRUE(sum.values() == expected);
      EXPECT_FALSE(plain.values() == expected) << "the control";
    });
  }
}

// A fresh adapter does not change a bit of its model.
TEST(MatmulWithAnAddedProduct, OfZerosChangesNoBit) {
  for (const DType in : {DType::f32, DType::bf16, DType::f16}) {
    add_products(in, in, 0,
                 [](const Array& plain, const Array& sum, const Values&) { EXPECT_EQ(plain.bytes(), sum.bytes()); });
  }
}

TEST(MatmulThreads, BitsDoNotDependOnThreads) {
  struct Case {
    Form form;
    Shape s;
  };
  const Case cases[] = {{Form::forward, {97, 48, 33}},     {Form::forward, {3, 100, 70}},
                        {Form::forward, {260, 320, 1100}}, {Form::input, {97, 48, 33}},
                        {Form::input, {200, 2300, 96}},    {Form::weight, {97, 48, 33}},
                        {Form::weight, {2100, 160, 96}},   {Form::weight, {333, 65, 129}}};
  for (const Case& c : cases) {
    for (const DType in : {DType::f32, DType::bf16, DType::f16}) {
      const auto [n, m, k] = c.s;
      const Values a = test::random_values(c.form == Form::forward ? n * k : n * m, 3);
      const Values b = test::random_values(c.form == Form::weight ? n * k : m * k, 4);
      test::expect_same_bits_for_threads([&](bool changed) {
        Values other = a;
        other[0] += changed ? 0.5 : 0.0;
        return run(c.form, c.s, in, DType::f32, other, b, nullptr, nullptr).bytes();
      });
    }
  }
}

// On the host the bits are those of the whole product, so that a block of rows may be computed by itself.
TEST(MatmulRows, BlocksOfAWeightGradientAreThoseOfTheWhole) {
  for (const Shape& s : {Shape{97, 48, 33}, {333, 65, 129}, {2100, 160, 96}, {40, 1200, 300}}) {
    for (const DType in : {DType::f32, DType::bf16, DType::f16}) {
      const Array dy(in, {s.n, s.m}, test::random_values(s.n * s.m, 5));
      const Array x(in, {s.n, s.k}, test::random_values(s.n * s.k, 6));
      const Values before = test::random_values(s.m * s.k, 7);
      for (const bool accumulate : {false, true}) {
        Array whole(DType::f32, {s.m, s.k}), blocks(DType::f32, {s.m, s.k});
        whole.set(before);
        blocks.set(before);
        linear_backward_weight(whole, dy, x, accumulate, test::stream());
        for (int64_t first = 0; first < s.m; first += 16) {
          const Tensor rows = blocks.tensor().rows(first, std::min<int64_t>(16, s.m - first));
          linear_backward_weight_rows(rows, first, dy, x, accumulate, test::stream());
        }
        if (device_memory_is_host()) {
          EXPECT_EQ(blocks.bytes(), whole.bytes()) << s.n << " " << s.m << " " << s.k << " " << name_of(in);
        }
        const auto bound = [](size_t) { return 1e-3; };
        test::expect_close(blocks.values(), whole.values(), bound);
        EXPECT_FALSE(blocks.values() == before) << "control";
      }
    }
  }
  const Array dy(DType::f32, {5, 8}), x(DType::f32, {5, 3}), rows(DType::f32, {4, 3});
  EXPECT_NO_THROW(linear_backward_weight_rows(rows, 4, dy, x, false, test::stream()));
  EXPECT_THROW(linear_backward_weight_rows(rows, 5, dy, x, false, test::stream()), Error);
  EXPECT_THROW(linear_backward_weight_rows(rows, -1, dy, x, false, test::stream()), Error);
}

// A product for which stock primitives divide the inner dimension among threads.
TEST(MatmulThreads, TallWeightGradient) {
  const Shape s{4096, 768, 2304};
  for (const DType in : {DType::f32, DType::bf16, DType::f16}) {
    const Array dy(in, {s.n, s.m}, test::random_values(s.n * s.m, 5));
    const Values x_values = test::random_values(s.n * s.k, 6);
    Array x(in, {s.n, s.k}, x_values);
    Array dw(DType::f32, {s.m, s.k});
    test::expect_same_bits_for_threads([&](bool changed) {
      if (changed) {
        Values other = x_values;
        other[17] = 2;
        x.set(other);
      } else {
        x.set(x_values);
      }
      linear_backward_weight(dw, dy, x, false, test::stream());
      return dw.bytes();
    });
  }
}

TEST(MatmulBias, SumsRows) {
  for (const DType in : {DType::f32, DType::bf16, DType::f16}) {
    for (const Shape& s : {Shape{1, 1, 0}, Shape{31, 5, 0}, Shape{64, 256, 0}, Shape{333, 700, 0}}) {
      const Array dy(in, {s.n, s.m}, test::random_values(s.n * s.m, 7));
      const Values d = dy.values();
      Values expected(static_cast<size_t>(s.m)), magnitude(static_cast<size_t>(s.m));
      for (size_t i = 0; i < d.size(); ++i) expected[i % static_cast<size_t>(s.m)] += d[i];
      for (size_t i = 0; i < d.size(); ++i) magnitude[i % static_cast<size_t>(s.m)] += std::fabs(d[i]);
      Array db(DType::f32, {s.m});
      linear_backward_bias(db, dy, false, test::stream());
      const auto bound = [&](size_t i) { return 64 * 0x1p-24 * (magnitude[i] + 1); };
      test::expect_close(db.values(), expected, bound);
      for (double& e : expected) e *= 2;
      linear_backward_bias(db, dy, true, test::stream());
      test::expect_close(db.values(), expected, bound);
    }
  }
  const Values d = test::random_values(333 * 300, 8);
  test::expect_same_bits_for_threads([&](bool changed) {
    const Array dy(DType::f32, {333, 300}, changed ? test::random_values(333 * 300, 9) : d);
    const Array db(DType::f32, {300});
    linear_backward_bias(db, dy, false, test::stream());
    return db.bytes();
  });
}

TEST(Matmul, RefusesWrongShapes) {
  const Array x(DType::f32, {4, 5}), w(DType::f32, {6, 5}), wrong(DType::f32, {4, 7}), y(DType::f32, {4, 6});
  const Array half(DType::bf16, {6, 5});
  EXPECT_NO_THROW(linear_forward(y, x, w, {}, test::stream()));
  EXPECT_THROW(linear_forward(wrong, x, w, {}, test::stream()), Error);
  EXPECT_THROW(linear_forward(y, x, half, {}, test::stream()), Error);
  EXPECT_THROW(linear_backward_weight(half, y, x, false, test::stream()), Error);
}

}  // namespace
}  // namespace llmtrain
