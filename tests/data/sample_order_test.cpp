#include "data/stream/sample_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

namespace llmtrain {
namespace {

std::vector<int64_t> order_of(int64_t n, uint64_t key) {
  const SampleOrder order(n, key);
  std::vector<int64_t> result;
  for (int64_t i = 0; i < n; ++i) result.push_back(order(i));
  return result;
}

TEST(SampleOrder, IsABijection) {
  std::vector<int64_t> sizes = {1000, 4096, 4097, 99991, 250000};
  for (int64_t n = 1; n <= 130; ++n) sizes.push_back(n);
  for (const int64_t n : sizes) {
    std::vector<int64_t> order = order_of(n, random_key(42, RandomPurpose::sample_order, static_cast<uint64_t>(n)));
    std::sort(order.begin(), order.end());
    std::vector<int64_t> expected(static_cast<size_t>(n));
    std::iota(expected.begin(), expected.end(), 0);
    ASSERT_EQ(order, expected) << n;
  }
}

TEST(SampleOrder, DependsOnTheKeyAndIsNotTheIdentity) {
  EXPECT_EQ(order_of(1000, 7), order_of(1000, 7));
  EXPECT_NE(order_of(1000, 7), order_of(1000, 8));
  const std::vector<int64_t> order = order_of(1000, 7);
  int fixed = 0, neighbours = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    fixed += order[i] == static_cast<int64_t>(i) ? 1 : 0;
    neighbours += i > 0 && order[i] == order[i - 1] + 1 ? 1 : 0;
  }
  EXPECT_LT(fixed, 10);  // 1 is expected of a random permutation
  EXPECT_LT(neighbours, 10);
}

TEST(SampleOrder, EverySampleIsEquallyLikelyAtEveryPlace) {
  constexpr int n = 11, keys = 11000;
  int counts[n][n] = {};
  for (uint64_t key = 0; key < keys; ++key) {
    const std::vector<int64_t> order = order_of(n, random_key(key, RandomPurpose::sample_order));
    for (int i = 0; i < n; ++i) ++counts[i][order[static_cast<size_t>(i)]];
  }
  double chi_squared = 0;  // n^2 cells of 1000 expected, (n - 1)^2 degrees of freedom: 100 +- 14
  for (const auto& row : counts) {
    for (const int count : row) chi_squared += (count - 1000.0) * (count - 1000.0) / 1000.0;
  }
  EXPECT_LT(chi_squared, 100 + 5 * 14.2);
  EXPECT_GT(chi_squared, 100 - 5 * 14.2);
}

TEST(SampleOrder, HugeNumbersOfSamplesStayInRange) {
  const int64_t n = (int64_t{1} << 61) - 12345;
  const SampleOrder order(n, 3);
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 10000; ++i) {
    const int64_t sample = order(i * 1234567891);
    ASSERT_GE(sample, 0);
    ASSERT_LT(sample, n);
    seen.insert(sample);
  }
  EXPECT_EQ(seen.size(), 10000U);
}

}  // namespace
}  // namespace llmtrain
