// The maximum of the tests' own errors.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "harness/errors.hpp"

namespace llmtrain::test {
namespace {

TEST(Larger, IsTheGreaterOfTwoNumbersAndNaNBeforeAny) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(larger(1, 2), 2);
  EXPECT_EQ(larger(2, 1), 2);
  EXPECT_EQ(larger(-1, -infinity), -1);
  for (const double number : {0.0, 3.0, infinity}) {
    EXPECT_TRUE(std::isnan(larger(nan, number)));
    EXPECT_TRUE(std::isnan(larger(number, nan)));
  }
}

}  // namespace
}  // namespace llmtrain::test
