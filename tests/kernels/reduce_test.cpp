#include "kernels/reduce.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <set>

#include "kernels/kernel_test.hpp"

namespace llmtrain {
namespace {

using test::Array;
using test::Bytes;
using test::Values;

Bytes limbs_of(ExactSum sum) {
  sum.carry();  // one representation of each value
  const auto* bytes = reinterpret_cast<const unsigned char*>(sum.limbs().data());
  return Bytes(bytes, bytes + sum.limbs().size_bytes());
}

TEST(SumOfSquares, AgreesWithExtendedPrecision) {
  for (const int64_t n : {1, 15, 16, 255, 256, 257, 70000}) {
    const Array x(DType::f32, {n}, test::random_values(n, 1, 1e3));
    long double expected = 0;
    for (const double v : x.values()) expected += static_cast<long double>(v) * v;
    ExactSum sum;
    sum.add(0.5);
    sum_of_squares(sum, x, test::stream());
    EXPECT_NEAR(sum.value(), static_cast<double>(expected) + 0.5, 16 * 0x1p-53 * static_cast<double>(expected)) << n;
  }
}

// Element i of a chunk goes to lane i mod 16, and the lanes are folded in one order, on any device.
TEST(SumOfSquares, OrderInAChunkIsFixed) {
  const int64_t n = 256 * 3 + 100;
  const Array x(DType::f32, {n}, test::random_values(n, 12));
  const Values v = x.values();
  ExactSum expected, simple;
  for (size_t begin = 0; begin < v.size(); begin += 256) {
    double lanes[16] = {}, in_order = 0;
    for (size_t i = begin; i < std::min(v.size(), begin + 256); ++i) {
      lanes[i % 16] += v[i] * v[i];
      in_order += v[i] * v[i];
    }
    double s[4];
    for (int k = 0; k < 4; ++k) s[k] = (lanes[k] + lanes[4 + k]) + (lanes[8 + k] + lanes[12 + k]);
    expected.add((s[0] + s[2]) + (s[1] + s[3]));
    simple.add(in_order);
  }
  ExactSum sum;
  sum_of_squares(sum, x, test::stream());
  EXPECT_EQ(limbs_of(sum), limbs_of(expected));
  EXPECT_NE(limbs_of(sum), limbs_of(simple)) << "control: another order rounds elsewhere";
}

// Sums on the device: the same integers, added to the existing ones.
TEST(SumOfSquares, OnTheDeviceIsTheSameSum) {
  const int64_t n = 256 * 70 + 3;
  const Array x(DType::f32, {n}, test::random_values(n, 13, 1e4)), w(DType::f32, {n}, test::random_values(n, 14));
  const Array sum(DType::i64, {2, ExactSum::integer_count});
  const auto add = [&](auto&& squares, auto&& products) {
    sum_of_squares(squares, x, test::stream());
    sum_of_products(products, x, w, test::stream());
    sum_of_squares(squares, x.tensor().rows(256, 300), test::stream());
    sum_of_products(products, x.tensor().rows(0, 1), {}, test::stream());
    sum_of_squares(squares, x.tensor().rows(0, 0), test::stream());
  };
  ExactSum squares, products;
  add(squares, products);
  add(sum.tensor().rows(0, 1), sum.tensor().rows(1, 1));
  std::array<ExactSum, 2> read;
  for (size_t i = 0; i < 2; ++i) {
    const Tensor integers = sum.tensor().rows(static_cast<int64_t>(i), 1);
    copy_to_host(read[i].limbs().data(), integers.data, integers.bytes(), test::stream());
  }
  test::stream().synchronize();
  EXPECT_EQ(limbs_of(read[0]), limbs_of(squares));
  EXPECT_EQ(limbs_of(read[1]), limbs_of(products));
  EXPECT_NE(limbs_of(read[0]), limbs_of(read[1]));
  EXPECT_THROW(sum_of_squares(sum, x, test::stream()), Error) << "two sums are not one";
}

// The limbs themselves: sharded at whole chunks, in any order, on any number of threads.
TEST(SumOfSquares, DoesNotDependOnTheCut) {
  const int64_t n = 256 * 37 + 100;
  const Array x(DType::f32, {n}, test::random_values(n, 2));
  ExactSum whole;
  sum_of_squares(whole, x, test::stream());
  ExactSum parts;
  for (const auto& [begin, count] :
       {std::pair<int64_t, int64_t>{256 * 30, n - 256 * 30}, {0, 256 * 7}, {256 * 7, 256 * 23}}) {
    sum_of_squares(parts, x.tensor().rows(begin, count), test::stream());
  }
  EXPECT_EQ(limbs_of(parts), limbs_of(whole));
  ExactSum shifted;  // control: chunks with a different start round differently
  sum_of_squares(shifted, x.tensor().rows(0, 100), test::stream());
  sum_of_squares(shifted, x.tensor().rows(100, n - 100), test::stream());
  EXPECT_NE(limbs_of(shifted), limbs_of(whole));
  EXPECT_NEAR(shifted.value(), whole.value(), 1e-9);
}

TEST(SumOfSquares, BitsDoNotDependOnThreads) {
  test::expect_same_bits_for_threads([](bool changed) {
    const Array x(DType::f32, {30000}, test::random_values(30000, changed ? 3 : 4));
    ExactSum sum;
    sum_of_squares(sum, x, test::stream());
    return limbs_of(sum);
  });
}

TEST(SumOfProducts, InfinitiesAndNansShow) {
  const double infinity = std::numeric_limits<double>::infinity();
  const auto sum_of = [](const Values& v) {
    ExactSum sum;
    sum_of_products(sum, Array(DType::f32, {3}, v), {}, test::stream());
    return sum.value();
  };
  EXPECT_EQ(sum_of({1, infinity, 2}), infinity);
  EXPECT_EQ(sum_of({-infinity, 1, -infinity}), -infinity);
  EXPECT_TRUE(std::isnan(sum_of({infinity, 1, -infinity})));
  EXPECT_TRUE(std::isnan(sum_of({1, std::nan(""), 1})));
  EXPECT_EQ(sum_of({0x1p-149, -0x1p127, 0x1p127}), 0x1p-149);
}

TEST(SumOfProducts, IsExact) {
  // Large terms cancel: an ordinary sum in double loses the rest.
  const Array x(DType::f32, {4}, {1e30, 1.5, -1e30, 0x1p-60}), w(DType::f32, {4}, {1e7, 2, 1e7, 1});
  ExactSum weighted;
  sum_of_products(weighted, x, w, test::stream());
  EXPECT_EQ(weighted.value(), 3.0);
  ExactSum plain;
  sum_of_products(plain, x, {}, test::stream());
  EXPECT_EQ(plain.value(), 1.5);
  test::expect_same_bits_for_threads([](bool changed) {
    const Array a(DType::f32, {3001}, test::random_values(3001, 5, 1e6));
    const Array b(DType::f32, {3001}, test::random_values(3001, changed ? 6 : 7));
    ExactSum sum;
    sum_of_products(sum, a, b, test::stream());
    return limbs_of(sum);
  });
}

TEST(ChunkedHash, ShardsAddUp) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const int64_t n = 256 * 9 + 77;
    const Array x(dtype, {n}, test::random_values(n, 8));
    const uint64_t whole = chunked_hash(x, 0, test::stream());
    uint64_t sum = 0;
    for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 256}, {256, 256 * 5}, {256 * 6, n - 256 * 6}}) {
      sum += chunked_hash(x.tensor().rows(begin, count), begin, test::stream());
    }
    EXPECT_EQ(sum, whole);
    EXPECT_NE(chunked_hash(x, 256, test::stream()), whole) << "another place is another hash";
    EXPECT_THROW(chunked_hash(x, 100, test::stream()), Error);
  }
}

// The value itself: every device, and every version, gives the same.
TEST(ChunkedHash, IsFrozen) {
  EXPECT_EQ(chunked_hash(Array(DType::f32, {700}, test::random_integers(700, 10, 100)), 512, test::stream()),
            7804210360801093572u);
  EXPECT_EQ(chunked_hash(Array(DType::bf16, {701}, test::random_integers(701, 11, 100)), 0, test::stream()),
            6668526404687504749u);
}

TEST(ChunkedHash, EveryElementCounts) {
  const int64_t n = 600;
  const Values v = test::random_values(n, 9);
  std::set<uint64_t> seen{chunked_hash(Array(DType::bf16, {n}, v), 0, test::stream())};
  for (size_t i = 0; i < v.size(); ++i) {
    Values changed = v;
    changed[i] += 1;
    seen.insert(chunked_hash(Array(DType::bf16, {n}, changed), 0, test::stream()));
  }
  for (size_t i = 0; i + 1 < v.size(); ++i) {  // neighbours swapped
    Values changed = v;
    std::swap(changed[i], changed[i + 1]);
    seen.insert(chunked_hash(Array(DType::bf16, {n}, changed), 0, test::stream()));
  }
  EXPECT_EQ(seen.size(), 2 * v.size());
}

TEST(ChunkedHash, DoesNotDependOnThreads) {
  test::expect_same_bits_for_threads([](bool changed) {
    const uint64_t h =
        chunked_hash(Array(DType::f32, {5000}, test::random_values(5000, changed ? 1 : 2)), 0, test::stream());
    const auto* bytes = reinterpret_cast<const unsigned char*>(&h);
    return Bytes(bytes, bytes + sizeof h);
  });
}

}  // namespace
}  // namespace llmtrain
