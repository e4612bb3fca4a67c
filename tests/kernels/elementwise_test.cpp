#include "kernels/elementwise.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/random_normal.hpp"
#include "harness/errors.hpp"
#include "kernels/kernel_test.hpp"

namespace llmtrain {
namespace {

using test::Array;
using test::Bytes;
using test::TestBatch;
using test::Values;

constexpr int64_t rows = 45, sequence_length = 20;
constexpr Dropout dropout{0.3f, 0x1234567890abcdefu};

/// Factors of [N, C] by their definition, one element at a time.
Values factors(int64_t width, const Dropout& d) {
  Values f;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < width; ++c) {
      const auto element = static_cast<uint64_t>(r % sequence_length * width + c);
      f.push_back(d.active() ? static_cast<double>(d.scale(TestBatch::sequence(r, sequence_length), element)) : 1.0);
    }
  }
  return f;
}

TEST(Residual, AddsWithDropout) {
  const TestBatch batch(rows, sequence_length, 10, 1);
  for (const int64_t width : {1, 3, 7, 64, 257, 600}) {  // rows begin anywhere in a group of four random numbers
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (const Dropout& d : {Dropout{}, dropout, Dropout{1e-6f, 9}, Dropout{0.999f, 9}}) {
        const Array in(DType::f32, {rows, width}, test::random_values(rows * width, 2));
        const Array delta(dtype, {rows, width}, test::random_values(rows * width, 3));
        const Array out(DType::f32, {rows, width});
        residual_add(out, in, delta, batch, d, test::stream());
        Values expected = in.values();
        const Values f = factors(width, d), v = delta.values();
        for (size_t i = 0; i < expected.size(); ++i) expected[i] += f[i] * v[i];
        const auto bound = [&](size_t i) { return 0x1p-24 * (std::fabs(expected[i]) + 1e-7); };
        test::expect_close(out.values(), expected, bound, "residual " + std::to_string(width));
        residual_add(in, in, delta, batch, d, test::stream());
        EXPECT_EQ(in.bytes(), out.bytes()) << "in place";

        const Array dout(DType::f32, {rows, width}, test::random_values(rows * width, 4));
        const Array ddelta(dtype, {rows, width});
        residual_add_backward(ddelta, dout, batch, d, test::stream());
        Values gradient = dout.values();
        for (size_t i = 0; i < gradient.size(); ++i) gradient[i] *= f[i];
        const Array rounded(dtype, {rows, width}, gradient);
        test::expect_close(ddelta.values(), gradient, [&](size_t i) {
          return test::storing_error(dtype, gradient[i]) + 0x1p-24 * std::fabs(gradient[i]);
        });
      }
    }
  }
}

TEST(Residual, DropsTheRightShare) {
  const int64_t width = 1024;
  const Values f = factors(width, dropout);
  const TestBatch batch(rows, sequence_length, 10, 1);
  const Array dout(DType::f32, {rows, width}, Values(static_cast<size_t>(rows * width), 1.0)),
      d(DType::f32, {rows, width});
  residual_add_backward(d, dout, batch, dropout, test::stream());
  EXPECT_EQ(d.values(), f);
  EXPECT_NE(d.values(), factors(width, Dropout{0.3f, 1})) << "control: another key";
  double kept = 0;
  for (const double v : f) kept += v != 0 ? 1 : 0;
  EXPECT_NEAR(kept / static_cast<double>(f.size()), 0.7, 0.01);  // 4.7 standard deviations
}

TEST(Residual, BitsDoNotDependOnThreads) {
  const TestBatch batch(rows, sequence_length, 10, 1);
  const int64_t width = 100;
  test::expect_same_bits_for_threads([&](bool changed) {
    const Array in(DType::f32, {rows, width}, test::random_values(rows * width, changed ? 9 : 2));
    const Array delta(DType::bf16, {rows, width}, test::random_values(rows * width, 3));
    const Array out(DType::f32, {rows, width});
    residual_add(out, in, delta, batch, dropout, test::stream());
    residual_add_backward(delta, in, batch, dropout, test::stream());
    Bytes all = out.bytes();
    const Bytes more = delta.bytes();
    all.insert(all.end(), more.begin(), more.end());
    return all;
  });
}

TEST(Cast, RoundsToNearestEven) {
  const int64_t n = 10007;
  const Values v = test::random_values(n, 5, 1000.0);
  const Array wide(DType::f32, {n}, v), half(DType::bf16, {n}), back(DType::f32, {n});
  cast(half, wide, test::stream());
  EXPECT_EQ(half.bytes(), Array(DType::bf16, {n}, v).bytes());
  EXPECT_NE(half.bytes(), Array(DType::bf16, {n}, test::random_values(n, 6, 1000.0)).bytes()) << "control";
  cast(back, half, test::stream());
  EXPECT_EQ(back.values(), half.values());
  cast(back, wide, test::stream());
  EXPECT_EQ(back.bytes(), wide.bytes());
  // 1 + 2^-8 lies between two bf16 numbers: the even one is 1; 1 + 3 * 2^-8 goes up to 1 + 2^-6.
  const Array ties(DType::f32, {2}, {1 + 0x1p-8, 1 + 3 * 0x1p-8}), rounded(DType::bf16, {2});
  cast(rounded, ties, test::stream());
  EXPECT_EQ(rounded.values(), (Values{1, 1 + 0x1p-6}));
}

TEST(AddBias, RoundsTheSumOnce) {
  const Array sum(DType::f32, {3, 5}, test::random_values(15, 1)), bias(DType::bf16, {5}, test::random_values(5, 2));
  const Values a = sum.values(), b = bias.values();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Array out(dtype, {3, 5}), rounded(dtype, {3, 5});
    Values expected;
    for (size_t i = 0; i < 15; ++i) expected.push_back(static_cast<float>(a[i] + b[i % 5]));
    const Array exact(DType::f32, {3, 5}, expected);
    add_bias(out, sum, bias, test::stream());
    cast(rounded, exact, test::stream());
    EXPECT_EQ(out.values(), rounded.values());
    add_bias(out, sum, {}, test::stream());
    cast(rounded, sum, test::stream());
    EXPECT_EQ(out.values(), rounded.values()) << "without a bias";
  }
  EXPECT_THROW(add_bias(sum, sum, Array(DType::f32, {4}), test::stream()), Error);
}

TEST(AddInto, AddsOrReplaces) {
  const int64_t n = 9001;
  const Array a(DType::f32, {n}, test::random_integers(n, 1, 1000)),
      b(DType::f32, {n}, test::random_integers(n, 2, 1000));
  Values sum = a.values();
  const Values v = b.values();
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += v[i];
  add_into(a, b, false, test::stream());
  EXPECT_EQ(a.values(), sum);
  EXPECT_NE(a.values(), v) << "control";
  add_into(a, b, true, test::stream());
  EXPECT_EQ(a.values(), v);
}

// Values whose sum depends on the order.
TEST(AddInOrder, AddsFromTheLeft) {
  constexpr int64_t n = 9001;
  const auto all = [](double value) { return Array(DType::f32, {n}, Values(static_cast<size_t>(n), value)); };
  const Array a = all(1), b = all(0x1p24), c = all(-0x1p24), out = all(3);
  const auto sum = [&](std::initializer_list<Tensor> in, bool first) {
    add_in_order(out, std::vector<Tensor>(in), first, test::stream());
    const Values values = out.values();
    EXPECT_EQ(values, Values(values.size(), values[0]));
    return values[0];
  };
  EXPECT_EQ(sum({a, b, c}, true), 0);  // 1 is lost
  EXPECT_EQ(sum({b, c, a}, true), 1);
  EXPECT_EQ(sum({b, c}, false), 0);  // (1 + 2^24) - 2^24
  EXPECT_EQ(sum({a}, false), 1);
  EXPECT_EQ(sum({b}, true), 0x1p24);
  EXPECT_EQ(sum({c, a, a}, false), 2);
  EXPECT_THROW(sum({a, Tensor(a.tensor().data, DType::f32, {n - 1})}, true), Error);
}

TEST(Fill, EveryElement) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Array a(dtype, {5001});
    fill(a, 1.5f, test::stream());
    EXPECT_EQ(a.values(), Values(5001, 1.5));
  }
}

TEST(RandomNormal, IsBoxAndMullersOfTheLibrary) {
  const auto pair = [](uint64_t bits53, uint32_t angle) {
    return normal_pair(static_cast<uint32_t>(bits53 >> 21), static_cast<uint32_t>(bits53 << 11), angle);
  };
  const auto expect_as_library = [&](uint64_t bits53, uint32_t bits32) {
    const double radius = std::sqrt(-2 * std::log((static_cast<double>(bits53) + 0.5) * 0x1p-53));
    const double angle = 6.283185307179586 * random_uniform(bits32);
    const NormalPair found = pair(bits53, bits32);
    EXPECT_NEAR(found.even, radius * std::cos(angle), 1e-15 * (1 + radius)) << bits53 << " " << bits32;
    EXPECT_NEAR(found.odd, radius * std::sin(angle), 1e-15 * (1 + radius)) << bits53 << " " << bits32;
  };
  const std::vector<uint64_t> uniforms = {0, 1, 1ULL << 20, 1ULL << 50, 1ULL << 52, (1ULL << 53) - 2, 6369051672525772};
  const std::vector<uint32_t> angles = {0,          1,          0x1FFFFFFF, 0x20000000, 0x3FFFFFFF, 0x40000000,
                                        0x7FFFFFFF, 0x80000000, 0x9FFFFFFF, 0xA0000000, 0xC0000000, 0xFFFFFFFF};
  for (const uint64_t u : uniforms) {
    for (const uint32_t a : angles) expect_as_library(u, a);
  }
  for (uint64_t i = 0; i < 20000; ++i) {
    const Philox4 r = philox4x32(3, 1, i);
    expect_as_library(((uint64_t{r.v[0]} << 32) | r.v[1]) >> 11, r.v[2]);
  }
}

/// Also across a carry of the counter of random numbers.
TEST(FillNormal, HasTheBitsOfOneNumberAfterTheOther) {
  for (const int64_t first : {int64_t{0}, int64_t{5}, int64_t{48}, (int64_t{1} << 33) - 24, (int64_t{1} << 40) + 3}) {
    for (const int64_t n : {1, 15, 16, 17, 1000}) {
      const Array a(DType::f32, {n});
      fill_normal(a, 0.7, 42, first, test::stream());
      Values expected;
      for (int64_t i = 0; i < n; ++i) {
        expected.push_back(static_cast<float>(0.7 * random_normal(42, static_cast<uint64_t>(first + i))));
      }
      EXPECT_EQ(a.values(), expected) << first << " " << n;
    }
  }
}

TEST(FillNormal, IsAFunctionOfKeyAndElement) {
  const int64_t n = 200001;
  const Array whole(DType::f32, {n}), part(DType::f32, {777}), other(DType::f32, {777});
  fill_normal(whole, 2.0, 99, 0, test::stream());
  fill_normal(part, 2.0, 99, 12345, test::stream());
  fill_normal(other, 2.0, 98, 12345, test::stream());
  const Values v = whole.values();
  EXPECT_EQ(part.values(), Values(v.begin() + 12345, v.begin() + 12345 + 777));
  EXPECT_NE(other.values(), part.values()) << "control: another key";
  // Moments and distribution (Kolmogorov-Smirnov distance) of the standard normal.
  double mean = 0, square = 0, fourth = 0, neighbours = 0;
  Values sorted;
  for (size_t i = 0; i < v.size(); ++i) {
    const double z = v[i] / 2.0;
    mean += z;
    square += z * z;
    fourth += z * z * z * z;
    if (i > 0) neighbours += z * v[i - 1] / 2.0;
    sorted.push_back(z);
  }
  const auto count = static_cast<double>(n);
  EXPECT_NEAR(mean / count, 0, 5 / std::sqrt(count));
  EXPECT_NEAR(square / count, 1, 5 * std::sqrt(2 / count));
  EXPECT_NEAR(fourth / count, 3, 5 * std::sqrt(96 / count));
  EXPECT_NEAR(neighbours / count, 0, 5 / std::sqrt(count));
  std::sort(sorted.begin(), sorted.end());
  double distance = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    const double p = 0.5 * std::erfc(-sorted[i] / std::sqrt(2.0));
    distance = test::larger(distance, std::fabs(p - static_cast<double>(i) / count));
  }
  EXPECT_LT(distance, 1.95 / std::sqrt(count));  // exceeded by chance once in a thousand
}

TEST(FillNormal, BitsDoNotDependOnThreads) {
  test::expect_same_bits_for_threads([&](bool changed) {
    const Array a(DType::f32, {20001});
    fill_normal(a, 0.02, changed ? 1 : 2, 0, test::stream());
    return a.bytes();
  });
}

TEST(FillUniform, IsAFunctionOfKeyAndElementWithinTheBound) {
  const int64_t n = 100001;
  const Array whole(DType::f32, {n}), part(DType::f32, {777}), other(DType::f32, {777});
  fill_uniform(whole, 0.3, 99, 0, test::stream());
  fill_uniform(part, 0.3, 99, 12345, test::stream());
  fill_uniform(other, 0.3, 98, 12345, test::stream());
  Values v = whole.values();
  EXPECT_EQ(part.values(), Values(v.begin() + 12345, v.begin() + 12345 + 777));
  EXPECT_NE(other.values(), part.values()) << "control: another key";
  std::sort(v.begin(), v.end());
  EXPECT_GT(v.front(), -0.3);
  EXPECT_LT(v.back(), 0.3);
  double distance = 0;  // Kolmogorov-Smirnov
  for (size_t i = 0; i < v.size(); ++i) {
    distance =
        test::larger(distance, std::fabs((v[i] / 0.3 + 1) / 2 - static_cast<double>(i) / static_cast<double>(n)));
  }
  EXPECT_LT(distance, 1.95 / std::sqrt(static_cast<double>(n)));
}

}  // namespace
}  // namespace llmtrain
