#include "core/dtype.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <set>
#include <string>

namespace llmtrain {
namespace {

/// The bf16 nearest to a finite `value`, ties to even, by arithmetic on doubles: bf16 numbers have 8 significant bits
/// and are multiples of 2^-133; from 2^128 on they are infinite.
double nearest_bf16(float value) {
  if (value == 0) return value;
  int exponent = 0;
  std::frexp(static_cast<double>(value), &exponent);
  const int quantum = std::max(exponent - 8, -133);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(static_cast<double>(value), -quantum)), quantum);
  return std::abs(rounded) >= std::ldexp(1.0, 128) ? std::copysign(std::numeric_limits<double>::infinity(), value)
                                                   : rounded;
}

double rounded_bf16(float value) { return static_cast<double>(static_cast<float>(bf16(value))); }

void expect_nearest(uint32_t bits) {
  const float value = std::bit_cast<float>(bits);
  if (std::isnan(value)) {
    EXPECT_TRUE(std::isnan(rounded_bf16(value))) << std::hex << bits;
  } else if (std::isinf(value)) {
    EXPECT_EQ(rounded_bf16(value), value);
  } else {
    ASSERT_EQ(rounded_bf16(value), nearest_bf16(value)) << std::hex << bits;
    ASSERT_EQ(std::signbit(rounded_bf16(value)), std::signbit(value)) << std::hex << bits;
  }
}

TEST(Bf16, KeepsItsOwnNumbers) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    bf16 number;
    number.bits = static_cast<uint16_t>(bits);
    const float value = static_cast<float>(number);
    const bool nan = (bits & 0x7fffu) > 0x7f80u;
    ASSERT_EQ(std::isnan(value), nan);
    if (nan) {
      EXPECT_TRUE(std::isnan(static_cast<float>(bf16(value))));
    } else {
      ASSERT_EQ(bf16(value).bits, bits);
    }
  }
}

TEST(Bf16, RoundsToNearestEvenAtAndAroundEveryTie) {
  for (uint32_t upper = 0; upper < 65536; ++upper) {
    for (uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) expect_nearest(upper << 16 | lower);
  }
}

TEST(Bf16, RoundsToNearestEverywhere) {
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 4099) expect_nearest(static_cast<uint32_t>(bits));
}

TEST(Bf16, KnownValues) {
  EXPECT_EQ(bf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(bf16(-2.0f).bits, 0xc000);
  EXPECT_EQ(bf16(3.14159265f).bits, 0x4049);
  EXPECT_EQ(bf16(1.00390625f).bits, 0x3f80);  // 1 + 2^-8, a tie: to even, down
  EXPECT_EQ(bf16(1.01171875f).bits, 0x3f82);  // 1 + 3 * 2^-8, a tie: to even, up
  EXPECT_EQ(bf16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(bf16(std::numeric_limits<float>::denorm_min()).bits, 0x0000);
  EXPECT_EQ(bf16(-0.0f).bits, 0x8000);
  // NaNs whose payload lies in the lost half alone must not become infinite.
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(std::bit_cast<float>(0xff800001u)))));
  EXPECT_EQ(bf16(std::bit_cast<float>(0x7fffffffu)).bits & 0x7f80, 0x7f80);
}

TEST(Bf16, TheReferenceTellsRoundingFromTruncation) {
  int different = 0;
  for (uint32_t bits = 0x3f800000; bits < 0x3f810000; bits += 17) {
    const float truncated = std::bit_cast<float>(bits & 0xffff0000u);
    different += static_cast<double>(truncated) != nearest_bf16(std::bit_cast<float>(bits)) ? 1 : 0;
  }
  EXPECT_NEAR(different, 65536 / 17.0 / 2, 2);
}

TEST(DType, SizesAndNames) {
  const DType all[] = {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32,
                       DType::i64, DType::u64,  DType::u32, DType::u16, DType::u8};
  const size_t sizes[] = {4, 2, 2, 8, 4, 8, 8, 4, 2, 1};
  std::set<std::string> names;
  for (size_t i = 0; i < std::size(all); ++i) {
    EXPECT_EQ(size_of(all[i]), sizes[i]);
    names.insert(std::string(name_of(all[i])));
  }
  EXPECT_EQ(names.size(), std::size(all));
  EXPECT_EQ(name_of(DType::f32), "fp32");
  EXPECT_EQ(name_of(DType::bf16), "bf16");
}

template <class T>
void expect_type(DType dtype) {
  EXPECT_EQ(dtype_of<T>, dtype);
  EXPECT_EQ(size_of(dtype), sizeof(T));
}

TEST(DType, OfCppTypes) {
  expect_type<float>(DType::f32);
  expect_type<double>(DType::f64);
  expect_type<bf16>(DType::bf16);
  expect_type<int32_t>(DType::i32);
  expect_type<int64_t>(DType::i64);
  expect_type<uint64_t>(DType::u64);
  expect_type<uint32_t>(DType::u32);
  expect_type<uint16_t>(DType::u16);
  expect_type<uint8_t>(DType::u8);
}

}  // namespace
}  // namespace llmtrain
