#pragma once
// Dequantisation of parts of rows. dequantize_avx512.cpp compiles the templates for wider vectors, with instructions
// that the rest of the program must not contain: it calls only templates over V.

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/host/fast_math.hpp"
#include "kernels/quantized_matrix.hpp"
#include "kernels/rounded_product.hpp"

namespace llmtrain::host {

/// Elements [first, first + count) of a slice, counted row by row, and their destination.
struct DequantizedRun {
  Quantization format;
  const uint8_t* chunks;
  const float* table;
  const float* levels;  ///< of the 4-bit codes
  const float* map;     ///< of doubly quantised scales
  int block_bits;       ///< binary logarithm of the size of a block
  int64_t columns;
  int64_t first;
  int64_t count;
  DType rounded;  ///< values are rounded to this compute dtype
  void* out;
  bool wide;  ///< out is fp32 whatever `rounded` is
};

/// Elements [column, column + count) of a row, in the compute dtype or, if `wide`, rounded to it but stored as fp32.
void dequantize_row(const QuantizedMatrix& matrix, int64_t row, int64_t column, int64_t count, DType dtype, void* out,
                    bool wide = false);
/// Dequantizer<Float16>::run, for processors with AVX-512.
void dequantize_avx512(const DequantizedRun& run);

template <class V>
class Dequantizer {
 public:
  static void run(const DequantizedRun& r) {
    if (r.wide || r.rounded == DType::f32) return to(r, static_cast<float*>(r.out));
    r.rounded == DType::bf16 ? to(r, static_cast<bf16*>(r.out)) : to(r, static_cast<f16*>(r.out));
  }

  static constexpr int64_t lanes = lanes_of<V>;

  /// Values of the 16 codes in a block.
  struct Values {
    V parts[16 / lanes];
  };

  static const uint8_t* record_of(const DequantizedRun& r, int64_t element) {
    return r.chunks + element / chunk_elements * chunk_bytes(r.format);
  }
  /// Scales of a chunk's blocks; the first element of the chunk is `element`.
  class Scales {
   public:
    Scales() = default;
    Scales(const DequantizedRun& r, const uint8_t* record, int64_t element)
        : at_(record + code_bytes(r.format)), map_(r.format.double_quantization ? r.map : nullptr) {
      if (map_ == nullptr) return;
      factor_ = r.table[1 + (element >> r.block_bits) / nested_block];
      offset_ = r.table[0];
    }
    float of(int64_t block) const {
      if (map_ != nullptr) return rounded_product(map_[at_[block]], factor_) + offset_;
      float scale = 0;
      std::memcpy(&scale, at_ + block * 4, sizeof scale);
      return scale;
    }

   private:
    const uint8_t* at_ = nullptr;
    const float* map_ = nullptr;
    float factor_ = 0, offset_ = 0;
  };

  static Values values_of(const DequantizedRun& r, float scale) {
    Values values;
    const bool finite = scale - scale == 0;
    for (int64_t i = 0; i < 16 / lanes; ++i) {
      const V exact = load_lanes<V>(r.levels + i * lanes) * scale;
      values.parts[i] = finite && r.rounded == DType::bf16 ? round_numbers(exact) : round(exact, r.rounded);
    }
    return values;
  }

  /// Values of as many codes as V has lanes, from the high nibble of the first byte on.
  static V look_up(const Values& values, const uint8_t* codes) {
#if defined(__AVX512F__)
    if constexpr (lanes == 16) {
      const __m512i words = _mm512_mask_set1_epi32(_mm512_set1_epi32(word_at(codes)), 0xFF00, word_at(codes + 4));
      const __m512i shifts = _mm512_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24, 4, 0, 12, 8, 20, 16, 28, 24);
      const __m512i index = _mm512_maskz_srlv_epi32(0xFFFF, words, shifts);  // of which four bits count
      return _mm512_maskz_permutexvar_ps(0xFFFF, index, std::bit_cast<__m512>(values.parts[0]));
    }
#endif
#if defined(__AVX2__)
    if constexpr (lanes == 8) {
      const __m256i bytes = _mm256_cvtepu8_epi64(_mm_loadu_si32(codes));
      const __m256i index = _mm256_or_si256(_mm256_srli_epi64(bytes, 4), _mm256_slli_epi64(bytes, 32));
      const __m256 low = _mm256_permutevar8x32_ps(std::bit_cast<__m256>(values.parts[0]), index);
      const __m256 high = _mm256_permutevar8x32_ps(std::bit_cast<__m256>(values.parts[1]), index);
      return std::bit_cast<V>(_mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28))));
    }
#endif
    V v;
    for (int64_t i = 0; i < lanes; ++i) v[i] = value_of(values, i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15);
    return v;
  }

 private:
  using Index = typename BitsOf<V>::Unsigned;

  /// Numbers that are not NaN, rounded to bf16.
  static V round_numbers(V v) {
    const auto u = std::bit_cast<Index>(v);
    return std::bit_cast<V>((u + 0x7FFFu + ((u >> 16) & 1u)) & 0xFFFF0000u);
  }
  static V round(V v, DType dtype) {
    if (dtype == DType::bf16) return std::bit_cast<V>(bf16_bits(v) << 16);
    if (dtype == DType::f16) {
      f16 half[lanes];
      store_lanes(half, v);
      return load_lanes<V>(half);
    }
    return v;
  }

  static int word_at(const uint8_t* codes) {
    int word = 0;
    std::memcpy(&word, codes, sizeof word);
    return word;
  }

  static float value_of(const Values& values, int code) { return values.parts[code / lanes][code % lanes]; }

  /// Stores values that are rounded to T already.
  template <class T>
  static void put(T* out, V v) {
    if constexpr (std::is_same_v<T, bf16>) {
      const auto half = __builtin_convertvector(std::bit_cast<Index>(v) >> 16, typename BitsOf<V>::Half);
      std::memcpy(out, &half, sizeof half);
    } else {
      store_lanes(out, v);
    }
  }

  template <class T>
  static void to(const DequantizedRun& r, T* out) {
    if (r.format.type == QuantizedType::int8) return rows_to(r, out);
    const int64_t in_block = r.format.block_size - 1;
    for (int64_t e = r.first, end = r.first + r.count; e < end;) {
      const uint8_t* record = record_of(r, e);
      const int64_t chunk = e / chunk_elements * chunk_elements,
                    stop = chunk + chunk_elements < end ? chunk + chunk_elements : end;
      const Scales scales(r, record, chunk);
      while (e < stop) {
        const int64_t at = e - chunk, left = in_block + 1 - (at & in_block), count = left < stop - e ? left : stop - e;
        block_to(values_of(r, scales.of(at >> r.block_bits)), record, at, count, out);
        out += count;
        e += count;
      }
    }
  }

  template <class T>
  static void block_to(const Values& values, const uint8_t* codes, int64_t at, int64_t count, T* out) {
    int64_t i = 0;
    if (at % 2 != 0) store(out + i++, value_of(values, codes[at / 2] & 15));
    const uint8_t* from = codes + (at + i) / 2;
    constexpr int64_t at_once = 4 * lanes;
    for (; i + at_once <= count; i += at_once, from += at_once / 2) {
      for (int64_t j = 0; j < at_once; j += lanes) put(out + i + j, look_up(values, from + j / 2));
    }
    for (; i + lanes <= count; i += lanes, from += lanes / 2) put(out + i, look_up(values, from));
    for (; i < count; ++i) {
      const uint8_t byte = codes[(at + i) / 2];
      store(out + i, value_of(values, (at + i) % 2 == 0 ? byte >> 4 : byte & 15));
    }
  }

  /// As many codes as V has lanes.
  static V widened(const int8_t* codes) {
#if defined(__AVX512F__)  // with GCC the generic form below takes more instructions
    if constexpr (lanes == 16) {
      const __m512i wide = _mm512_maskz_cvtepi8_epi32(0xFFFF, _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
      return std::bit_cast<V>(_mm512_maskz_cvtepi32_ps(0xFFFF, wide));
    }
#endif
#if defined(__AVX2__)
    if constexpr (lanes == 8) {
      return std::bit_cast<V>(
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)))));
    }
#endif
    V v;
    for (int64_t i = 0; i < lanes; ++i) v[i] = codes[i];
    return v;
  }

  template <class T>
  static void rows_to(const DequantizedRun& r, T* out) {
    for (int64_t e = r.first, end = r.first + r.count; e < end;) {
      const int64_t row = e / r.columns, last = (row + 1) * r.columns;
      const int64_t stop = last < end ? last : end;
      const V scale = V{} + r.table[row], step = V{} + int8_step;
      const auto values = [&](const int8_t* codes) { return round(widened(codes) * scale * step, r.rounded); };
      const auto* from = reinterpret_cast<const int8_t*>(r.chunks);
      for (; e + lanes <= stop; e += lanes, out += lanes) put(out, values(from + e));
      if (e < stop) {
        int8_t rest[lanes] = {};
        std::memcpy(rest, from + e, static_cast<size_t>(stop - e));
        store_up_to(out, values(rest), stop - e);
        out += stop - e;
      }
      e = stop;
    }
  }
};

}  // namespace llmtrain::host
