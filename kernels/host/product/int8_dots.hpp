#pragma once
// Sums of products of codes, exact in 32 bits. int8_dots_avx512.cpp compiles the template for wider vectors, with
// instructions that the rest of the program must not contain: it calls only templates over the width.

#include <cstdint>

#include "kernels/host/lanes.hpp"

namespace llmtrain::host {

/// Codes along a row are padded with zeros to a multiple of this.
inline constexpr int64_t int8_padding = 32;

/// `count` codes, a multiple of the padding, of rows of inputs and of two rows of weights.
struct Int8Dots {
  const int16_t* x;
  int64_t x_stride;
  const int16_t* w;
  int64_t w_stride;
  int64_t count;
  int64_t* sums;  ///< [rows, 2], to which the products are added
  int64_t sums_stride;
};

/// Int8DotsOf<Float16, rows>::run, for processors with AVX-512.
void add_int8_dots_avx512(const Int8Dots& d, int64_t rows);

template <class V, int rows>
struct Int8DotsOf {
  using Sums = typename BitsOf<V>::Signed;
  static constexpr int64_t codes = 2 * lanes_of<V>;

  /// Sums of neighbouring products of twice as many codes as V has lanes.
  static Sums products(const int16_t* a, const int16_t* b) {
#if defined(__AVX512BW__)
    if constexpr (codes == 32) {
      return std::bit_cast<Sums>(_mm512_madd_epi16(_mm512_loadu_si512(a), _mm512_loadu_si512(b)));
    }
#endif
#if defined(__AVX2__)
    if constexpr (codes == 16) {
      return std::bit_cast<Sums>(_mm256_madd_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(a)),
                                                   _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b))));
    }
#endif
    Sums sums{};
    for (int64_t i = 0; i < codes / 2; ++i) sums[i] = a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1];
    return sums;
  }

  static void run(const Int8Dots& d) {
    Sums sums[rows][2] = {};
    for (int64_t i = 0; i < d.count; i += codes) {
      for (int r = 0; r < rows; ++r) {
        for (int c = 0; c < 2; ++c) sums[r][c] += products(d.x + r * d.x_stride + i, d.w + c * d.w_stride + i);
      }
    }
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < 2; ++c) {
        int32_t sum = 0;
        for (int64_t i = 0; i < codes / 2; ++i) sum += sums[r][c][i];
        d.sums[r * d.sums_stride + c] += sum;
      }
    }
  }
};

}  // namespace llmtrain::host
