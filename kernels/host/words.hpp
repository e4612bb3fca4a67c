#pragma once
// Vectors of eight 32-bit words: random bits, or elements that are moved unchanged.

#include <cstdint>

namespace llmtrain::host {

using Words8 [[gnu::vector_size(32)]] = uint32_t;

/// Transposes r: 8 x 8 words, by unpacking words, then pairs, then halves.
inline void transpose(Words8 (&r)[8]) {
  Words8 s[8];
  for (int i = 0; i < 8; i += 2) {
    s[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    s[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  Words8 t[8];
  for (int i = 0; i < 8; i += 4) {
    for (int h = 0; h < 2; ++h) {
      t[i + 2 * h] = __builtin_shufflevector(s[i + h], s[i + 2 + h], 0, 1, 8, 9, 4, 5, 12, 13);
      t[i + 2 * h + 1] = __builtin_shufflevector(s[i + h], s[i + 2 + h], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = __builtin_shufflevector(t[i], t[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    r[i + 4] = __builtin_shufflevector(t[i], t[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

using Half8 [[gnu::vector_size(16)]] = uint16_t;

/// Unaligned vectors in memory.
using LooseWords8 [[gnu::vector_size(32), gnu::aligned(2), gnu::may_alias]] = uint32_t;
using LooseHalf8 [[gnu::vector_size(16), gnu::aligned(2), gnu::may_alias]] = uint16_t;

inline Words8 load_words(const void* p) { return *static_cast<const LooseWords8*>(p); }
inline Half8 load_halves(const void* p) { return *static_cast<const LooseHalf8*>(p); }
inline void store_words(void* p, Words8 v) { *static_cast<LooseWords8*>(p) = v; }

/// Words with `low` in the lower and `high` in the upper halves.
inline Words8 interleave(Half8 low, Half8 high) {
  using Half16 [[gnu::vector_size(32)]] = uint16_t;
  const Half16 words = __builtin_shufflevector(low, high, 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
  Words8 result;
  std::memcpy(&result, &words, sizeof result);
  return result;
}

}  // namespace llmtrain::host
