#pragma once
// Exponentials without branches, tables or library calls, of a float or of a vector of them. Loops over floats
// vectorise too, but the compiler may turn the clamps into branches: hot loops use vectors.

#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/host/lanes.hpp"

namespace llmtrain::host {

/// Propagates NaN.
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

/// Constant that, when added, rounds |x| < 2^22 to the nearest integer, which is then in the low bits.
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
#if defined(__AVX512F__)
  if constexpr (lanes_of<V> == 16) return _mm512_maskz_scalef_ps(0xFFFF, p, n);  // rounds like the product below
#endif
  // 2^n in two factors: n reaches 128 and -151, outside the exponents of normal numbers.
  const Integer k = std::bit_cast<Integer>(shifted) - std::bit_cast<int32_t>(rounding_magic);
  const Integer half = k >> 1;
  const V low = std::bit_cast<V>(std::bit_cast<Bits>(half + 127) << 23);
  const V high = std::bit_cast<V>(std::bit_cast<Bits>(k - half + 127) << 23);
  return p * low * high;
}

/// bf16 bits of every float, each in the low half of its word; rounds like bf16(float).
template <class V>
typename BitsOf<V>::Unsigned bf16_bits(V v) {
  const auto u = std::bit_cast<typename BitsOf<V>::Unsigned>(v);
  const auto rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
  return v == v ? rounded : (u >> 16) | 0x40u;  // NOLINT(misc-redundant-expression): NaN
}

template <class V>
void store_lanes(float* p, V v) {
  std::memcpy(p, &v, sizeof v);
}
template <class V>
void store_lanes(bf16* p, V v) {
#if defined(__AVX512F__)
  if constexpr (lanes_of<V> == 16) {
    const __m256i half = _mm512_maskz_cvtepi32_epi16(0xFFFF, std::bit_cast<__m512i>(bf16_bits(v)));
    return _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), half);
  }
#endif
  const auto half = __builtin_convertvector(bf16_bits(v), typename BitsOf<V>::Half);
  std::memcpy(p, &half, sizeof half);
}
template <class V>
void store_lanes(f16* p, V v) {
#if defined(__F16C__)
  if constexpr (lanes_of<V> == 8) {
    return _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
#endif
#if defined(__AVX512F__)
  if constexpr (lanes_of<V> == 16) {
    return _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                               _mm512_maskz_cvtps_ph(0xFFFF, v, _MM_FROUND_TO_NEAREST_INT));
  }
#endif
  for (int64_t i = 0; i < lanes_of<V>; ++i) p[i] = f16(v[i]);
}
/// Mask of the first `count` lanes, at most lanes_of<V>.
template <class V, class T>
void store_up_to(T* p, V v, int64_t count) {
  if (count >= lanes_of<V>) return store_lanes(p, v);
  for (int64_t i = 0; i < count; ++i) store(p + i, v[i]);
}

template <class T>
void store8(T* p, Float8 v) {
  store_lanes(p, v);
}

}  // namespace llmtrain::host
