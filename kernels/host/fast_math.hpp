#pragma once
// Exponentials that the compiler vectorises inside plain loops: no branches, no tables, no library calls.

#include <bit>
#include <cstdint>

namespace llmtrain::host {

/// Adding it rounds |x| < 2^22 to the nearest integer, which then stands in the low bits.
inline constexpr float rounding_magic = 12582912.0f;  // 1.5 * 2^23

/// 2^min(x, 0) for softmax, relative error below 1e-7 (minimax polynomial of degree 6 on [-1/2, 1/2]); 2^-126 below
/// -126. NaN stays NaN.
inline float fast_exp2_capped(float x) {
  x = x < -126.0f ? -126.0f : x;
  x = x > 0.0f ? 0.0f : x;
  const float shifted = x + rounding_magic;
  const float f = x - (shifted - rounding_magic);
  float p = 0x1.41fbbap-13f;
  p = p * f + 0x1.5f3e52p-10f;
  p = p * f + 0x1.3b2d4cp-7f;
  p = p * f + 0x1.c6aee8p-5f;
  p = p * f + 0x1.ebfbdcp-3f;
  p = p * f + 0x1.62e430p-1f;
  p = p * f + 1.0f;
  return p * std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) << 23) + 0x3F800000u);
}

/// e^x, relative error below 2e-7, over the whole range: 0 below -104, infinity above 88.73; denormal results are
/// rounded. NaN stays NaN.
inline float fast_exp(float x) {
  x = x < -104.5f ? -104.5f : x;
  x = x > 89.0f ? 89.0f : x;
  const float shifted = x * 0x1.715476p+0f + rounding_magic;
  const float n = shifted - rounding_magic;
  float r = x - n * 0x1.62e400p-1f;  // ln 2 in two parts, the first with 9 trailing zero bits: n times it is exact
  r = r - n * 0x1.7f7d1cp-20f;
  float p = 0x1.6ae72ep-10f;
  p = p * r + 0x1.126782p-7f;
  p = p * r + 0x1.555822p-5f;
  p = p * r + 0x1.55541ap-3f;
  p = p * r + 0x1.fffffcp-2f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // 2^n in two factors: n reaches 128 and -151, outside the exponents of normal numbers.
  const int32_t k = static_cast<int32_t>(n);
  const int32_t half = k >> 1;
  const float low = std::bit_cast<float>(static_cast<uint32_t>(half + 127) << 23);
  const float high = std::bit_cast<float>(static_cast<uint32_t>(k - half + 127) << 23);
  return p * low * high;
}

}  // namespace llmtrain::host
