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

/// The number of type T nearest to a finite `value`, ties to even, by arithmetic on doubles: numbers have this many
/// significant bits and are multiples of the smallest one; from the limit on they are infinite.
template <class T>
struct Format;
template <>
struct Format<bf16> {
  static constexpr int digits = 8, least = -133, limit = 128, infinity = 0x7f80;
};
template <>
struct Format<f16> {
  static constexpr int digits = 11, least = -24, limit = 16, infinity = 0x7c00;
};

template <class T>
double nearest(float value) {
  if (value == 0) return value;
  int exponent = 0;
  std::frexp(static_cast<double>(value), &exponent);
  const int quantum = std::max(exponent - Format<T>::digits, Format<T>::least);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(static_cast<double>(value), -quantum)), quantum);
  return std::abs(rounded) >= std::ldexp(1.0, Format<T>::limit)
             ? std::copysign(std::numeric_limits<double>::infinity(), value)
             : rounded;
}

template <class T>
double rounded(float value) {
  return static_cast<double>(static_cast<float>(T(value)));
}

template <class T>
void expect_nearest(uint32_t bits) {
  const float value = std::bit_cast<float>(bits);
  if (std::isnan(value)) {
    EXPECT_TRUE(std::isnan(rounded<T>(value))) << std::hex << bits;
  } else if (std::isinf(value)) {
    EXPECT_EQ(rounded<T>(value), value);
  } else {
    ASSERT_EQ(rounded<T>(value), nearest<T>(value)) << std::hex << bits;
    ASSERT_EQ(std::signbit(rounded<T>(value)), std::signbit(value)) << std::hex << bits;
  }
}

template <class T>
class HalfType : public testing::Test {};
using HalfTypes = testing::Types<bf16, f16>;
TYPED_TEST_SUITE(HalfType, HalfTypes);

TYPED_TEST(HalfType, KeepsItsOwnNumbers) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    TypeParam number;
    number.bits = static_cast<uint16_t>(bits);
    const float value = static_cast<float>(number);
    const bool nan = (bits & 0x7fffu) > Format<TypeParam>::infinity;
    ASSERT_EQ(std::isnan(value), nan);
    if (nan) {
      EXPECT_TRUE(std::isnan(static_cast<float>(TypeParam(value))));
    } else {
      ASSERT_EQ(TypeParam(value).bits, bits);
    }
  }
}

TYPED_TEST(HalfType, RoundsToNearestEvenAtAndAroundEveryTie) {
  for (uint32_t bits = 0; bits < 65535; ++bits) {
    TypeParam low, high;
    low.bits = static_cast<uint16_t>(bits);
    high.bits = static_cast<uint16_t>(bits + 1);
    const float a = static_cast<float>(low), b = static_cast<float>(high);
    if (std::isnan(a) || std::isnan(b)) continue;
    const float half_limit = std::ldexp(1.0f, Format<TypeParam>::limit - 1);
    const float middle = a / 2 + (std::isinf(b) ? std::copysign(half_limit, a) : b / 2);
    for (const float value : {a, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, b), b}) {
      expect_nearest<TypeParam>(std::bit_cast<uint32_t>(value));
    }
  }
}

TYPED_TEST(HalfType, RoundsToNearestEverywhere) {
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 4099)
    expect_nearest<TypeParam>(static_cast<uint32_t>(bits));
}

TEST(F16, KnownValues) {
  EXPECT_EQ(f16(1.0f).bits, 0x3c00);
  EXPECT_EQ(f16(-2.0f).bits, 0xc000);
  EXPECT_EQ(f16(3.14159265f).bits, 0x4248);
  EXPECT_EQ(f16(65504.0f).bits, 0x7bff);
  EXPECT_EQ(f16(65519.996f).bits, 0x7bff);
  EXPECT_EQ(f16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(f16(-1e30f).bits, 0xfc00);
  EXPECT_EQ(f16(0x1p-14f).bits, 0x0400);    // the least normal number
  EXPECT_EQ(f16(0x1p-24f).bits, 0x0001);    // the least one
  EXPECT_EQ(f16(0x1p-25f).bits, 0x0000);    // a tie: to even, down
  EXPECT_EQ(f16(0x1.8p-24f).bits, 0x0002);  // a tie: to even, up
  EXPECT_EQ(f16(0x1.002p-25f).bits, 0x0001);
  EXPECT_EQ(f16(1 + 0x1p-11f).bits, 0x3c00);
  EXPECT_EQ(f16(1 + 0x3p-11f).bits, 0x3c02);
  EXPECT_EQ(f16(-0.0f).bits, 0x8000);
  EXPECT_TRUE(std::isnan(static_cast<float>(f16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_EQ(rounded_to(DType::f16, 2049.0f), 2048.0f);
  EXPECT_EQ(rounded_to(DType::bf16, 257.0f), 256.0f);
  EXPECT_EQ(rounded_to(DType::f32, 2049.0f), 2049.0f);
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
  // NaNs whose payload is only in the dropped half must not become infinite.
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(std::bit_cast<float>(0xff800001u)))));
  EXPECT_EQ(bf16(std::bit_cast<float>(0x7fffffffu)).bits & 0x7f80, 0x7f80);
}

TEST(Bf16, TheReferenceTellsRoundingFromTruncation) {
  int different = 0;
  for (uint32_t bits = 0x3f800000; bits < 0x3f810000; bits += 17) {
    const float truncated = std::bit_cast<float>(bits & 0xffff0000u);
    different += static_cast<double>(truncated) != nearest<bf16>(std::bit_cast<float>(bits)) ? 1 : 0;
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
  expect_type<f16>(DType::f16);
  expect_type<int32_t>(DType::i32);
  expect_type<int64_t>(DType::i64);
  expect_type<uint64_t>(DType::u64);
  expect_type<uint32_t>(DType::u32);
  expect_type<uint16_t>(DType::u16);
  expect_type<uint8_t>(DType::u8);
}

}  // namespace
}  // namespace llmtrain
