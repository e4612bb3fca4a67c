#pragma once
// Sums in a fixed lane structure: element i goes to lane i mod 16, lanes are folded pairwise in double. The bits depend
// on the data alone, whatever the compiler vectorises.

#include <cstdint>
#include <cstring>

#include "kernels/host/element.hpp"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace llmtrain::host {

using Float8 [[gnu::vector_size(32)]] = float;
inline constexpr int64_t lane_count = 16;

class LaneSum {
 public:
  LaneSum() = default;
  LaneSum(Float8 low, Float8 high) : low_(low), high_(high) {}
  void add(Float8 low, Float8 high) {
    low_ += low;
    high_ += high;
  }
  double fold() const {
    const Float8 s = low_ + high_;
    return ((double{s[0]} + double{s[4]}) + (double{s[2]} + double{s[6]})) +
           ((double{s[1]} + double{s[5]}) + (double{s[3]} + double{s[7]}));
  }

 private:
  Float8 low_{};
  Float8 high_{};
};

inline Float8 load8(const float* p) {
  Float8 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline Float8 load8(const bf16* p) {
#if defined(__AVX2__)  // the generic form below takes more instructions with GCC
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
#else
  using U16x8 [[gnu::vector_size(16)]] = uint16_t;
  using U32x8 [[gnu::vector_size(32)]] = uint32_t;
  U16x8 half;
  std::memcpy(&half, p, sizeof half);
  const U32x8 wide = __builtin_convertvector(half, U32x8) << 16;
  Float8 v;
  std::memcpy(&v, &wide, sizeof v);
  return v;
#endif
}
/// Elements [0, count) of at most 8, the rest `rest`.
template <class T>
Float8 load8(const T* p, int64_t count, float rest = 0.0f) {
  Float8 v = Float8{} + rest;
  for (int64_t i = 0; i < count && i < 8; ++i) v[i] = load(p + i);
  return v;
}

/// term(i, n) gives elements i .. i + 7 as a Float8, of which only the first n exist (zero beyond).
template <class Term>
double lane_sum(int64_t count, const Term& term) {
  LaneSum sum;
  int64_t i = 0;
  for (; i + lane_count <= count; i += lane_count) sum.add(term(i, 8), term(i + 8, 8));
  if (i < count) sum.add(term(i, count - i), count > i + 8 ? term(i + 8, count - i - 8) : Float8{});
  return sum.fold();
}

template <class T>
Float8 load_up_to(const T* p, int64_t count) {
  return count >= 8 ? load8(p) : load8(p, count);
}

}  // namespace llmtrain::host
