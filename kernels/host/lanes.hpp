#pragma once
// Sums in a fixed lane structure: element i goes to lane i mod 16, lanes are folded pairwise in double. The bits depend
// only on the data, whatever the compiler vectorises.

#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/host/element.hpp"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace llmtrain::host {

using Float8 [[gnu::vector_size(32)]] = float;
using Float16 [[gnu::vector_size(64)]] = float;  ///< only for files x_avx512.cpp
template <class V>
inline constexpr int64_t lanes_of = sizeof(V) / sizeof(float);

/// Integers as wide as the floats of V (float or a vector of them), and half as wide.
template <class V>
struct BitsOf {
  using Unsigned = uint32_t;
  using Signed = int32_t;
  using Half = uint16_t;
};
template <>
struct BitsOf<Float8> {
  using Unsigned [[gnu::vector_size(32)]] = uint32_t;
  using Signed [[gnu::vector_size(32)]] = int32_t;
  using Half [[gnu::vector_size(16)]] = uint16_t;
};
template <>
struct BitsOf<Float16> {
  using Unsigned [[gnu::vector_size(64)]] = uint32_t;
  using Signed [[gnu::vector_size(64)]] = int32_t;
  using Half [[gnu::vector_size(32)]] = uint16_t;
};

inline constexpr int64_t lane_count = 16;

/// Adds lanes in double: ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)).
inline double fold_lanes(Float8 s) {
  using Double4 [[gnu::vector_size(32)]] = double;
  using Float4 [[gnu::vector_size(16)]] = float;
  Float4 halves[2];
  std::memcpy(halves, &s, sizeof halves);
  const Double4 d = __builtin_convertvector(halves[0], Double4) + __builtin_convertvector(halves[1], Double4);
  return (d[0] + d[2]) + (d[1] + d[3]);
}

class LaneSum {
 public:
  LaneSum() = default;
  LaneSum(Float8 low, Float8 high) : low_(low), high_(high) {}
  void add(Float8 low, Float8 high) {
    low_ += low;
    high_ += high;
  }
  double fold() const { return fold_lanes(low_ + high_); }

 private:
  Float8 low_{};
  Float8 high_{};
};

template <class V>
V load_lanes(const float* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class V>
V load_lanes(const bf16* p) {
#if defined(__AVX2__)  // with GCC the generic form below takes more instructions
  if constexpr (lanes_of<V> == 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
#endif
#if defined(__AVX512F__)
  if constexpr (lanes_of<V> == 16) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return std::bit_cast<V>(_mm512_maskz_slli_epi32(0xFFFF, _mm512_maskz_cvtepu16_epi32(0xFFFF, half), 16));
  }
#endif
  typename BitsOf<V>::Half half;
  std::memcpy(&half, p, sizeof half);
  const auto wide = __builtin_convertvector(half, typename BitsOf<V>::Unsigned) << 16;
  V v;
  std::memcpy(&v, &wide, sizeof v);
  return v;
}
template <class V>
V load_lanes(const f16* p) {
#if defined(__F16C__)
  if constexpr (lanes_of<V> == 8) return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#endif
// maskz: GCC's headers leave an operand of the plain form uninitialised, which causes a warning
#if defined(__AVX512F__)
  if constexpr (lanes_of<V> == 16)
    return _mm512_maskz_cvtph_ps(0xFFFF, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#endif
  V v;
  for (int64_t i = 0; i < lanes_of<V>; ++i) v[i] = static_cast<float>(p[i]);
  return v;
}
/// Loads elements [0, count), at most lanes_of<V>; the others are `rest`.
template <class V, class T>
V load_lanes(const T* p, int64_t count, float rest = 0.0f) {
  V v = V{} + rest;
  for (int64_t i = 0; i < count && i < lanes_of<V>; ++i) v[i] = load(p + i);
  return v;
}
template <class V, class T>
V load_up_to(const T* p, int64_t count) {
  return count >= lanes_of<V> ? load_lanes<V>(p) : load_lanes<V>(p, count);
}

template <class T>
Float8 load8(const T* p) {
  return load_lanes<Float8>(p);
}
template <class T>
Float8 load8(const T* p, int64_t count, float rest = 0.0f) {
  return load_lanes<Float8>(p, count, rest);
}
template <class T>
Float8 load_up_to(const T* p, int64_t count) {
  return load_up_to<Float8>(p, count);
}

/// term(i, n) returns elements i .. i + 7 as a Float8, of which only the first n exist (zero past the end).
template <class Term>
double lane_sum(int64_t count, const Term& term) {
  LaneSum sum;
  int64_t i = 0;
  for (; i + lane_count <= count; i += lane_count) sum.add(term(i, 8), term(i + 8, 8));
  if (i < count) sum.add(term(i, count - i), count > i + 8 ? term(i + 8, count - i - 8) : Float8{});
  return sum.fold();
}

}  // namespace llmtrain::host
