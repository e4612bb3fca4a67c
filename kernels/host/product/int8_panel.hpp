#pragma once
// Panels of int8 weights for micro-kernels: words of four codes that are neighbours along a row.

#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/host/words.hpp"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace llmtrain::host {

inline constexpr int64_t int8_panel_width = 64;

/// Adds the four codes in each word to its sum.
inline void add_codes(Words8& sums, Words8 words) {
#if defined(__AVX2__)
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), std::bit_cast<__m256i>(words));
  sums += std::bit_cast<Words8>(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#else
  using Integers [[gnu::vector_size(32)]] = int32_t;
  for (int shift = 0; shift < 32; shift += 8) {
    sums += std::bit_cast<Words8>(std::bit_cast<Integers>(words << shift) >> 24);
  }
#endif
}

/// Packs `count` codes of eight rows to out[w * int8_panel_width + row], w < padded / 4; the codes after them are zero.
/// Adds the codes of each row to its sum.
inline void pack_int8_rows(uint32_t* out, const int8_t* const (&rows)[8], int64_t count, int64_t padded, Words8& sums) {
  Words8 r[8];
  for (int64_t k = 0; k < padded; k += 32) {
    for (int i = 0; i < 8; ++i) {
      r[i] = Words8{};
      const int64_t left = count - k;
      if (left >= 32) {
        std::memcpy(&r[i], rows[i] + k, 32);
      } else if (left > 0) {
        std::memcpy(&r[i], rows[i] + k, static_cast<size_t>(left));
      }
    }
    transpose(r);
    for (int i = 0; i < 8; ++i) {
      add_codes(sums, r[i]);
      std::memcpy(out + (k / 4 + i) * int8_panel_width, &r[i], sizeof r[i]);
    }
  }
}

}  // namespace llmtrain::host
