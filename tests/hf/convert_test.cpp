#include "hf/convert.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/error.hpp"

namespace llmtrain {
namespace {

/// Returns the value of a half by its definition.
double value_of_half(int bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

TEST(Convert, EveryHalfBecomesItsValueAndComesBack) {
  std::vector<uint16_t> halves(65536);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  std::vector<float> values(halves.size());
  to_float(StoredType::F16, halves.data(), 65536, values.data());
  std::vector<uint16_t> back(halves.size());
  for (int i = 0; i < 65536; ++i) {
    const auto at = static_cast<size_t>(i);
    const bool special = (i >> 10 & 31) == 31;
    if (!special) {
      ASSERT_EQ(values[at], value_of_half(i)) << i;
      ASSERT_EQ(std::signbit(values[at]), (i & 0x8000) != 0) << i;
    } else {
      ASSERT_EQ(std::isnan(values[at]), (i & 1023) != 0) << i;
    }
    from_float(StoredType::F16, &values[at], 1, &back[at]);
    ASSERT_EQ(back[at], i);
  }
}

TEST(Convert, IntoMemoryGivesTheSameBitsWhereverItBegins) {
  std::vector<uint16_t> stored(65536 + 16);
  for (size_t i = 0; i < stored.size(); ++i) stored[i] = static_cast<uint16_t>(i);
  for (const StoredType type : {StoredType::BF16, StoredType::F16}) {
    for (const size_t begin : {0, 1, 3, 4, 5}) {
      for (const int64_t count : {0, 1, 7, 8, 9, 31, 65536}) {
        const auto n = static_cast<size_t>(count);
        std::vector<float> expected(n + 8, -1.0f), found(n + 8, -1.0f);
        const char* bytes = reinterpret_cast<const char*>(stored.data()) + begin;  // at odd addresses, too
        to_float(type, bytes, count, expected.data() + begin);
        to_float_in_memory(type, bytes, count, found.data() + begin);
        ASSERT_EQ(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)), 0) << begin << ", " << n;
      }
    }
  }
}

TEST(Convert, HalvesAreRoundedToNearestEven) {
  const auto half = [](double value) {
    const auto single = static_cast<float>(value);
    uint16_t bits = 0;
    from_float(StoredType::F16, &single, 1, &bits);
    return value_of_half(bits);
  };
  for (int bits : {1, 0x3FF, 0x400, 0x3C00, 0x3C01, 0x7BFE}) {
    const double low = value_of_half(bits), high = value_of_half(bits + 1), middle = (low + high) / 2;
    EXPECT_EQ(half(middle), bits % 2 == 0 ? low : high);
    EXPECT_EQ(half(std::nextafter(static_cast<float>(middle), 0.0f)), low);
    EXPECT_EQ(half(std::nextafter(static_cast<float>(middle), 1e9f)), high);
  }
  EXPECT_EQ(half(1e-9), 0);
  EXPECT_EQ(half(65519.996), 65504);
  EXPECT_THROW(half(65520), UserError);
  EXPECT_THROW(half(-1e30), UserError);
}

TEST(Convert, EveryBrainFloatBecomesItsValueAndComesBack) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto stored = static_cast<uint16_t>(i);
    float value = 0;
    uint16_t back = 0;
    to_float(StoredType::BF16, &stored, 1, &value);
    ASSERT_EQ(std::bit_cast<uint32_t>(value), i << 16);
    from_float(StoredType::BF16, &value, 1, &back);
    ASSERT_EQ(back, i);
  }
}

TEST(Convert, OtherTypesAreNoWeights) {
  EXPECT_TRUE(is_weight_type(StoredType::F32));
  EXPECT_FALSE(is_weight_type(StoredType::F64));
  EXPECT_FALSE(is_weight_type(StoredType::U8));
  float value = 0;
  EXPECT_THROW(to_float(StoredType::I64, &value, 1, &value), Error);
}

}  // namespace
}  // namespace llmtrain
