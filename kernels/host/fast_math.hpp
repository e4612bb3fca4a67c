#pragma once
// Exponentials without branches, tables or library calls, of a float or of eight at once. Loops over floats vectorise
// too, but the compiler may thread the clamps as branches through what follows: hot loops use Float8.

#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/host/lanes.hpp"

namespace llmtrain::host {

/// Integers as wide as V, float or Float8.
template <class V>
struct BitsOf {
  using Unsigned = uint32_t;
  using Signed = int32_t;
};
template <>
struct BitsOf<Float8> {
  using Unsigned [[gnu::vector_size(32)]] = uint32_t;
  using Signed [[gnu::vector_size(32)]] = int32_t;
};

/// NaN stays NaN.
template <class V>
inline V at_least(V x, float bound) {
  const V b = V{} + bound;
  return x < b ? b : x;
}
template <class V>
inline V at_most(V x, float bound) {
  const V b = V{} + bound;
  return x > b ? b : x;
}

/// Adding it rounds |x| < 2^22 to the nearest integer, which then stands in the low bits.
inline constexpr float rounding_magic = 12582912.0f;  // 1.5 * 2^23

/// 2^min(x, 0) for softmax, relative error below 1e-7 (minimax polynomial of degree 6 on [-1/2, 1/2]); 2^-126 below
/// -126. NaN stays NaN.
template <class V>
inline V fast_exp2_capped(V x) {
  using Bits = typename BitsOf<V>::Unsigned;
  x = at_most(at_least(x, -126.0f), 0.0f);
  const V shifted = x + rounding_magic;
  const V f = x - (shifted - rounding_magic);
  V p = f * 0x1.41fbbap-13f + 0x1.5f3e52p-10f;
  p = p * f + 0x1.3b2d4cp-7f;
  p = p * f + 0x1.c6aee8p-5f;
  p = p * f + 0x1.ebfbdcp-3f;
  p = p * f + 0x1.62e430p-1f;
  p = p * f + 1.0f;
  return p * std::bit_cast<V>((std::bit_cast<Bits>(shifted) << 23) + 0x3F800000u);
}

/// e^x, relative error below 1e-7 where the result is a normal number; 0 below -104.5, infinity above 88.73. NaN stays
/// NaN.
template <class V>
inline V fast_exp(V x) {
  using Bits = typename BitsOf<V>::Unsigned;
  using Integer = typename BitsOf<V>::Signed;
  x = at_most(at_least(x, -104.5f), 89.0f);
  const V shifted = x * 0x1.715476p+0f + rounding_magic;
  const V n = shifted - rounding_magic;
  V r = x - n * 0x1.62e400p-1f;  // ln 2 in two parts, the first with 9 trailing zero bits: n times it is exact
  r = r - n * 0x1.7f7d1cp-20f;
  V p = r * 0x1.6ae72ep-10f + 0x1.126782p-7f;
  p = p * r + 0x1.555822p-5f;
  p = p * r + 0x1.55541ap-3f;
  p = p * r + 0x1.fffffcp-2f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // 2^n in two factors: n reaches 128 and -151, outside the exponents of normal numbers.
  const Integer k = std::bit_cast<Integer>(shifted) - std::bit_cast<int32_t>(rounding_magic);
  const Integer half = k >> 1;
  const V low = std::bit_cast<V>(std::bit_cast<Bits>(half + 127) << 23);
  const V high = std::bit_cast<V>(std::bit_cast<Bits>(k - half + 127) << 23);
  return p * low * high;
}

/// bf16 bits of eight floats, each in the low half of its word; rounds like bf16(float).
inline BitsOf<Float8>::Unsigned bf16_bits(Float8 v) {
  const auto u = std::bit_cast<BitsOf<Float8>::Unsigned>(v);
  const auto rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
  return v == v ? rounded : (u >> 16) | 0x40u;  // NOLINT(misc-redundant-expression): NaN
}

inline void store8(float* p, Float8 v) { std::memcpy(p, &v, sizeof v); }
inline void store8(bf16* p, Float8 v) {
  using Half8 [[gnu::vector_size(16)]] = uint16_t;
  const auto half = __builtin_convertvector(bf16_bits(v), Half8);
  std::memcpy(p, &half, sizeof half);
}

}  // namespace llmtrain::host
