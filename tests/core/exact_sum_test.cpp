#include "core/exact_sum.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace llmtrain {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double huge = std::numeric_limits<double>::max();

double exact(const std::vector<double>& terms) {
  ExactSum sum;
  for (double x : terms) sum.add(x);
  return sum.value();
}

struct Golden {
  double sum;
  std::vector<double> terms;
};

/// Sums by Python's rational numbers, see tests/reference/make_sum_goldens.py.
std::vector<Golden> goldens() {
  std::ifstream file("tests/reference/sums/exact_sums.txt");
  std::vector<Golden> all;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::vector<double> numbers;
    for (std::string word; words >> word;) numbers.push_back(std::strtod(word.c_str(), nullptr));
    all.push_back({numbers.front(), {numbers.begin() + 1, numbers.end()}});
  }
  return all;
}

TEST(ExactSum, IsTheRoundedRationalSum) {
  const std::vector<Golden> all = goldens();
  ASSERT_GE(all.size(), 100u);
  int naive_wrong = 0;
  for (const Golden& golden : all) {
    EXPECT_EQ(exact(golden.terms), golden.sum);
    double naive = 0;
    for (double x : golden.terms) naive += x;
    naive_wrong += naive != golden.sum ? 1 : 0;
  }
  EXPECT_GT(naive_wrong, 30) << "control: the cases must tell an exact sum from a plain one";
}

TEST(ExactSum, DoesNotDependOnTheOrder) {
  std::mt19937 random(1);
  int plain_differs = 0;
  for (Golden golden : goldens()) {
    const std::vector<double> before = golden.terms;
    for (int i = 0; i < 5; ++i) {
      std::shuffle(golden.terms.begin(), golden.terms.end(), random);
      EXPECT_EQ(exact(golden.terms), golden.sum);
      double a = 0, b = 0;
      for (double x : before) a += x;
      for (double x : golden.terms) b += x;
      plain_differs += a != b ? 1 : 0;
    }
  }
  EXPECT_GT(plain_differs, 50) << "control";
}

TEST(ExactSum, MergesLikeIntegers) {
  for (const Golden& golden : goldens()) {
    std::array<ExactSum, 3> parts;
    for (size_t i = 0; i < golden.terms.size(); ++i) parts[i % 3].add(golden.terms[i]);
    ExactSum merged;
    for (const ExactSum& part : parts) merged.add(part);
    EXPECT_EQ(merged.value(), golden.sum);

    ExactSum reduced;  // computed as by an all-reduce
    for (const ExactSum& part : parts) {
      for (size_t i = 0; i < part.limbs().size(); ++i) reduced.limbs()[i] += part.limbs()[i];
    }
    EXPECT_EQ(reduced.value(), golden.sum);
  }
}

TEST(ExactSum, RoundsToNearestTiesToEven) {
  const double ulp = 0x1p-52;
  EXPECT_EQ(exact({1, ulp / 2}), 1);                   // tie, down to even
  EXPECT_EQ(exact({1 + ulp, ulp / 2}), 1 + 2 * ulp);   // tie, up to even
  EXPECT_EQ(exact({1, ulp / 2, 0x1p-1074}), 1 + ulp);  // beyond the tie by the smallest number
  EXPECT_EQ(exact({-1, -ulp / 2, -0x1p-1074}), -1 - ulp);
  EXPECT_EQ(exact({huge, 0x1p969}), huge);
  EXPECT_EQ(exact({huge, 0x1p970}), infinity);
  EXPECT_EQ(exact({huge, huge, huge, -huge, -huge}), huge);
}

TEST(ExactSum, KeepsSubnormals) {
  EXPECT_EQ(exact({0x1p-1074, 0x1p-1074}), 0x1p-1073);
  EXPECT_EQ(exact({1, 0x1p-1074, -1}), 0x1p-1074);
  EXPECT_EQ(exact({0x1p-1022, -0x1p-1074}), 0x1p-1022 - 0x1p-1074);
}

TEST(ExactSum, CountsWhatIsNotFinite) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(exact({1, infinity}), infinity);
  EXPECT_EQ(exact({-infinity, -infinity, 5}), -infinity);
  EXPECT_TRUE(std::isnan(exact({infinity, -infinity})));
  EXPECT_TRUE(std::isnan(exact({nan, 1})));
  ExactSum a, b;
  a.add(infinity);
  b.add(-infinity);
  a.add(b);
  EXPECT_TRUE(std::isnan(a.value()));
}

TEST(ExactSum, StartsAndClearsToZero) {
  ExactSum sum;
  EXPECT_EQ(sum.value(), 0);
  sum.add(3);
  sum.clear();
  EXPECT_EQ(sum.value(), 0);
  EXPECT_FALSE(std::signbit(exact({0.5, -0.5})));
}

TEST(ExactSum, HoldsManyLargeTerms) {
  ExactSum part;
  for (int i = 0; i < 1024; ++i) part.add(-huge);
  ExactSum sum;
  for (int i = 0; i < 1024; ++i) sum.add(part);  // 2^20 terms
  EXPECT_EQ(sum.value(), -infinity);
  ExactSum back;
  for (int i = 0; i < 1024; ++i) back.add(huge);
  for (int i = 0; i < 1024; ++i) sum.add(back);
  EXPECT_EQ(sum.value(), 0);
  sum.add(0.125);
  EXPECT_EQ(sum.value(), 0.125);
}

TEST(ExactSum, CarriesKeepTheValueAndMakeLimbsUnique) {
  ExactSum up, down;
  for (int i = 0; i < 1000; ++i) {
    up.add(0x1.fffffffffffffp+40);
    up.add(-0x1.8p-30);
  }
  for (int i = 0; i < 1000; ++i) down.add(-0x1.8p-30);
  for (int i = 0; i < 1000; ++i) down.add(0x1.fffffffffffffp+40);
  const double value = up.value();
  ExactSum halves;
  halves.add(up);
  halves.add(down);
  EXPECT_EQ(halves.value(), 2 * value);
  up.carry();
  EXPECT_EQ(up.value(), value);
  down.carry();
  EXPECT_TRUE(std::equal(up.limbs().begin(), up.limbs().end(), down.limbs().begin()));
  ExactSum negative;
  negative.add(-5);
  negative.add(3.25);
  negative.carry();
  EXPECT_EQ(negative.value(), -1.75);
}

}  // namespace
}  // namespace llmtrain
