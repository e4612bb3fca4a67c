#pragma once
// Sigmoid, error function and normal distribution in fp32, without branches and calls, so that loops over them
// vectorise. Sums of products are written as fma: the vector body and the scalar rest of a loop give the same bits.
// Polynomials: own minimax fits (Lawson iteration in double).

#include <cmath>

#include "kernels/host/fast_math.hpp"

namespace llmtrain::host {

/// 1 / (1 + e^-x)
inline float fast_sigmoid(float x) {
  const float e = fast_exp(-std::fabs(x));
  const float numerator = x < 0.0f ? e : 1.0f;
  return numerator / (1.0f + e);
}

/// erfc(a) for a >= 0.95: exp(-a^2) t P(t), t = 1 / (1 + 0.4 a).
inline float fast_erfc_tail(float magnitude) {
  const float a = magnitude > 10.6f ? 10.6f : magnitude;  // erfc(10.6) is 0 in fp32
  const float t = 1.0f / std::fma(0.4f, a, 1.0f);
  float p = -0.11615358293056488f;
  p = std::fma(p, t, 0.2432934045791626f);
  p = std::fma(p, t, 0.008628823794424534f);
  p = std::fma(p, t, 0.2128298431634903f);
  p = std::fma(p, t, 0.19885405898094177f);
  p = std::fma(p, t, 0.226680725812912f);
  p = std::fma(p, t, 0.22562779486179352f);
  const float square = a * a;
  const float rest = std::fma(a, a, -square);  // what rounding took from a^2
  const float exponential = fast_exp(-square);
  return std::fma(-rest, exponential, exponential) * (p * t);
}

/// erf(x) for |x| <= 1: x + x P(x^2); adding x last keeps the rounding of the largest coefficient out.
inline float fast_erf_core(float x) {
  const float s = x * x;
  float p = 7.889122935011983e-05f;
  p = std::fma(p, s, -0.0008020842215046287f);
  p = std::fma(p, s, 0.005189535673707724f);
  p = std::fma(p, s, -0.026854444295167923f);
  p = std::fma(p, s, 0.11283600330352783f);
  p = std::fma(p, s, -0.3761262595653534f);
  p = std::fma(p, s, 0.128379167f);
  return std::fma(p, x, x);
}

inline float fast_erf(float x) {
  const float a = std::fabs(x);
  const float outer = std::copysign(1.0f - fast_erfc_tail(a), x);
  const float inner = fast_erf_core(x);
  return a > 1.0f ? outer : inner;
}

/// Distribution function of the standard normal; small values keep their relative accuracy (1 + erf would not).
inline float fast_normal_cdf(float x) {
  const float a = std::fabs(x) * 0.707106781f;
  const float half_tail = 0.5f * fast_erfc_tail(a);
  const float outer = x < 0.0f ? half_tail : 1.0f - half_tail;
  const float inner = std::fma(0.5f, fast_erf_core(x * 0.707106781f), 0.5f);
  return a > 1.0f ? outer : inner;
}

}  // namespace llmtrain::host
