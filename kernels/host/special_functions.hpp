#pragma once
// Sigmoid, tanh, error function and normal distribution without branches, tables and calls, of a float or of a
// vector of them. Polynomials: own minimax fits (Lawson iteration in double).

#include <cmath>

#include "kernels/host/fast_math.hpp"

#if defined(__FMA__)
#include <immintrin.h>
#endif

namespace llmtrain::host {

/// a b + c, rounded once.
inline float fused(float a, float b, float c) { return std::fma(a, b, c); }
template <class V>
V fused(V a, V b, V c) {
#if defined(__AVX512F__)
  if constexpr (lanes_of<V> == 16) return _mm512_fmadd_ps(a, b, c);
#endif
#if defined(__FMA__)
  if constexpr (lanes_of<V> == 8) return _mm256_fmadd_ps(a, b, c);
#endif
  for (int64_t i = 0; i < lanes_of<V>; ++i) c[i] = std::fma(a[i], b[i], c[i]);
  return c;
}
template <class V>
V fused(V a, V b, float c) {
  return fused(a, b, V{} + c);
}

template <class V>
V magnitude_of(V x) {
  return std::bit_cast<V>(std::bit_cast<typename BitsOf<V>::Unsigned>(x) & 0x7FFFFFFFu);
}
/// |x| with the sign of s.
template <class V>
V with_sign(V x, V s) {
  using Bits = typename BitsOf<V>::Unsigned;
  return std::bit_cast<V>((std::bit_cast<Bits>(x) & 0x7FFFFFFFu) | (std::bit_cast<Bits>(s) & 0x80000000u));
}

/// 1 / (1 + e^-x)
template <class V>
V fast_sigmoid(V x) {
  const V e = fast_exp(-magnitude_of(x));
  const V one = V{} + 1.0f;
  const V numerator = x < V{} ? e : one;
  return numerator / (one + e);
}

/// erfc(a) for a >= 0.95 as two factors: exp(-a^2), of any a, and t P(t), t = 1 / (1 + 0.4 a). What is added to their
/// product is fused by name: left to the compiler, one float and eight at once may differ in the last bit.
template <class V>
struct ErfcTail {
  V exponential;
  V polynomial;
};
template <class V>
ErfcTail<V> fast_erfc_tail(V magnitude) {
  const V a = at_most(magnitude, 10.6f);  // erfc(10.6) is 0 in fp32
  const V t = 1.0f / fused(V{} + 0.4f, a, 1.0f);
  V p = V{} + -0.11615358293056488f;
  p = fused(p, t, 0.2432934045791626f);
  p = fused(p, t, 0.008628823794424534f);
  p = fused(p, t, 0.2128298431634903f);
  p = fused(p, t, 0.19885405898094177f);
  p = fused(p, t, 0.226680725812912f);
  p = fused(p, t, 0.22562779486179352f);
  const V square = a * a;
  const V rest = fused(a, a, -square);  // what rounding took from a^2
  const V rounded = fast_exp(-square);
  return {fused(-rest, rounded, rounded), p * t};
}

/// erf(x) for |x| <= 1: x + x P(x^2); adding x last keeps the rounding of the largest coefficient out.
template <class V>
V fast_erf_core(V x) {
  const V s = x * x;
  V p = V{} + 7.889122935011983e-05f;
  p = fused(p, s, -0.0008020842215046287f);
  p = fused(p, s, 0.005189535673707724f);
  p = fused(p, s, -0.026854444295167923f);
  p = fused(p, s, 0.11283600330352783f);
  p = fused(p, s, -0.3761262595653534f);
  p = fused(p, s, 0.128379167f);
  return fused(p, x, x);
}

/// tanh(x) for |x| <= 0.6: x + x^3 P(x^2).
template <class V>
V fast_tanh_core(V x) {
  const V s = x * x;
  V p = V{} + -0.005895157810300589f;
  p = fused(p, s, 0.020795971155166626f);
  p = fused(p, s, -0.053783830255270004f);
  p = fused(p, s, 0.13331924378871918f);
  p = fused(p, s, -0.33333298563957214f);
  return fused(p * s, x, x);
}

template <class V>
V fast_tanh(V x) {
  const V a = magnitude_of(x);
  const V one = V{} + 1.0f;
  const V outer = with_sign(one - 2.0f / (fast_exp(a + a) + one), x);
  const V inner = fast_tanh_core(x);
  return a > V{} + 0.6f ? outer : inner;
}

/// Distribution function of the standard normal; small values keep their relative accuracy (1 + erf would not).
/// `density` is its derivative.
template <class V>
V fast_normal_cdf_and_density(V x, V& density) {
  const V scaled = x * 0.707106781f;
  const V a = magnitude_of(scaled);
  const ErfcTail<V> tail = fast_erfc_tail(a);
  density = 0.398942280f * tail.exponential;
  const V half = 0.5f * tail.exponential;
  const V outer = x < V{} ? half * tail.polynomial : fused(-half, tail.polynomial, 1.0f);
  const V inner = fused(V{} + 0.5f, fast_erf_core(scaled), 0.5f);
  return a > V{} + 1.0f ? outer : inner;
}

}  // namespace llmtrain::host
