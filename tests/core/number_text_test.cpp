#include "core/number_text.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace llmtrain {
namespace {

TEST(NumberText, IsForPeople) {
  EXPECT_EQ(with_unit(0, "tok/s"), "0 tok/s");
  EXPECT_EQ(with_unit(999, "tok/s"), "999 tok/s");
  EXPECT_EQ(with_unit(1234, "tok/s"), "1.23 ktok/s");
  EXPECT_EQ(with_unit(123456789, "FLOP/s"), "123 MFLOP/s");
  EXPECT_EQ(duration(0.44), "0.4 s");
  EXPECT_EQ(duration(59.4), "59 s");
  EXPECT_EQ(duration(61), "1 min 01 s");
  EXPECT_EQ(duration(3700), "1 h 01 min");
  EXPECT_EQ(duration(200000), "2 d 07 h");
  EXPECT_EQ(number_text(-0.25, 4), "-0.2500");
  EXPECT_EQ(number_text(1.5e36, 3), "1.500e+36");
  EXPECT_EQ(number_text(-std::numeric_limits<double>::quiet_NaN(), 3), "nan");
  EXPECT_EQ(number_text(std::numeric_limits<double>::infinity(), 3), "inf");
  EXPECT_EQ(bytes_text(512), "512 B");
  EXPECT_EQ(bytes_text(1536), "1.50 KiB");
  EXPECT_EQ(bytes_text(3.2 * 1024 * 1024 * 1024), "3.20 GiB");
}

}  // namespace
}  // namespace llmtrain
