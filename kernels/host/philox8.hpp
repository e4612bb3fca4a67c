#pragma once
// Eight evaluations of Philox4x32-10 at once, in the lanes of vectors; the same bits as philox4x32.

#include <bit>
#include <cstdint>

#include "core/philox.hpp"
#include "kernels/host/words.hpp"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace llmtrain::host {

/// The four output words, or the four words of the counter (low word first), of eight evaluations.
struct Philox8 {
  Words8 v[4];
};

/// Output of evaluations first .. first + 7 of a sequence: philox4x32(key, sequence, first + lane).
inline Philox8 consecutive_counters(uint64_t sequence, uint64_t first) {
  const Words8 zero{};
  const auto low = static_cast<uint32_t>(first);
  const Words8 counter_low = Words8{0, 1, 2, 3, 4, 5, 6, 7} + low;
  const auto carried = std::bit_cast<Words8>(counter_low < low);  // all bits (that is, -1) or none
  return {{counter_low, zero + static_cast<uint32_t>(first >> 32) - carried, zero + static_cast<uint32_t>(sequence),
           zero + static_cast<uint32_t>(sequence >> 32)}};
}

struct Product8 {
  Words8 high;
  Words8 low;
};

inline Product8 multiply_wide(Words8 x, uint32_t factor) {
#if defined(__AVX2__)  // even and odd lanes separately; GCC does not find this form
  const __m256i f = _mm256_set1_epi64x(factor);
  const auto bits = reinterpret_cast<__m256i>(x);
  const __m256i even = _mm256_mul_epu32(bits, f);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(bits, 32), f);
  return {reinterpret_cast<Words8>(_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA)),
          reinterpret_cast<Words8>(_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA))};
#else
  Product8 p{};
  for (int l = 0; l < 8; ++l) {
    const uint64_t wide = uint64_t{factor} * x[l];
    p.high[l] = static_cast<uint32_t>(wide >> 32);
    p.low[l] = static_cast<uint32_t>(wide);
  }
  return p;
#endif
}

inline Philox8 philox8(uint64_t key, const Philox8& counter) {
  uint32_t k0 = static_cast<uint32_t>(key);
  uint32_t k1 = static_cast<uint32_t>(key >> 32);
  Words8 c0 = counter.v[0], c1 = counter.v[1], c2 = counter.v[2], c3 = counter.v[3];
  for (int round = 0; round < 10; ++round) {
    const Product8 p0 = multiply_wide(c0, 0xD2511F53u);
    const Product8 p1 = multiply_wide(c2, 0xCD9E8D57u);
    c0 = p1.high ^ c1 ^ k0;
    c2 = p0.high ^ c3 ^ k1;
    c1 = p1.low;
    c3 = p0.low;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

}  // namespace llmtrain::host
