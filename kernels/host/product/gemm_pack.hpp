#pragma once
// Packing of matrix panels for gemm_run.cpp. A panel consists of 32-bit words: one fp32 number, or two bf16 numbers
// that are neighbours along k. "j" is the other index (m for A, n for B).

#include <bit>
#include <cstdint>

#include "core/dtype.hpp"
#include "kernels/host/lanes.hpp"
#include "kernels/host/words.hpp"

static_assert(std::endian::native == std::endian::little, "words of two bf16 numbers are laid out for little endian");

namespace llmtrain::host {

/// Conversion of elements of type In to words of a panel of type Panel; `unit` elements along k form a word.
template <class In, class Panel>
struct PanelWords;

template <>
struct PanelWords<float, float> {
  static constexpr int64_t unit = 1;
  static uint32_t word(const float* p, int64_t, int64_t) { return std::bit_cast<uint32_t>(*p); }
  static Words8 along_k(const float* p) { return load_words(p); }
  static Words8 along_j(const float* p, int64_t) { return load_words(p); }
};

template <>
struct PanelWords<bf16, float> {
  static constexpr int64_t unit = 1;
  static uint32_t word(const bf16* p, int64_t, int64_t) { return uint32_t{p->bits} << 16; }
  static Words8 along_k(const bf16* p) {
    const Half8 zero{};
    return interleave(zero, load_halves(p));
  }
  static Words8 along_j(const bf16* p, int64_t) { return along_k(p); }
};

template <>
struct PanelWords<f16, float> {
  static constexpr int64_t unit = 1;
  static uint32_t word(const f16* p, int64_t, int64_t) { return std::bit_cast<uint32_t>(static_cast<float>(*p)); }
  static Words8 along_k(const f16* p) { return std::bit_cast<Words8>(load8(p)); }
  static Words8 along_j(const f16* p, int64_t) { return along_k(p); }
};

template <>
struct PanelWords<bf16, bf16> {
  static constexpr int64_t unit = 2;
  /// `left` elements along k remain, `stride` apart; a missing second one is zero.
  static uint32_t word(const bf16* p, int64_t stride, int64_t left) {
    return uint32_t{p->bits} | (left > 1 ? uint32_t{p[stride].bits} << 16 : 0u);
  }
  static Words8 along_k(const bf16* p) { return load_words(p); }
  static Words8 along_j(const bf16* p, int64_t stride) { return interleave(load_halves(p), load_halves(p + stride)); }
};

/// Words of the source matrix at (word index along k, j).
template <class In, class Panel>
struct PanelSource {
  using Words = PanelWords<In, Panel>;
  const In* data;    ///< element (0, 0)
  int64_t k_stride;  ///< 1 or the leading dimension
  int64_t j_stride;
  int64_t k_count;  ///< elements

  int64_t words() const { return (k_count + Words::unit - 1) / Words::unit; }
  const In* at(int64_t w, int64_t j) const { return data + w * Words::unit * k_stride + j * j_stride; }
  uint32_t word(int64_t w, int64_t j) const { return Words::word(at(w, j), k_stride, k_count - w * Words::unit); }
  /// True if words [w, w + 8) are complete.
  bool whole(int64_t w, int64_t count) const { return (w + count) * Words::unit <= k_count; }
};

/// Copies words [w, w + 8) of rows [j, j + 8) to out + j_step * j + w_step * w; one of the steps is 1. Blocks at the
/// border of the matrix are copied word by word, with zeros outside; `rows` bounds j.
template <class In, class Panel>
void pack_block(uint32_t* out, int64_t w_step, int64_t j_step, const PanelSource<In, Panel>& source, int64_t w,
                int64_t j, int64_t rows) {
  using Words = PanelWords<In, Panel>;
  const int64_t w_count = source.words() - w < 8 ? source.words() - w : 8;
  const bool along_j = source.j_stride == 1;
  if (j + 8 <= rows && source.whole(w, 8)) {
    Words8 r[8];
    for (int64_t i = 0; i < 8; ++i) {
      r[i] = along_j ? Words::along_j(source.at(w + i, j), source.k_stride) : Words::along_k(source.at(w, j + i));
    }
    if (along_j != (j_step == 1)) transpose(r);
    uint32_t* block = out + w * w_step + j * j_step;
    const int64_t step = j_step == 1 ? w_step : j_step;
    for (int64_t i = 0; i < 8; ++i) store_words(block + i * step, r[i]);
    return;
  }
  for (int64_t jj = j; jj < j + 8; ++jj) {
    for (int64_t ww = w; ww < w + w_count; ++ww) {
      if (jj < rows) out[ww * w_step + jj * j_step] = source.word(ww, jj);
      if (jj >= rows && j_step == 1) out[ww * w_step + jj] = 0;
    }
  }
}

/// Copies all blocks, in an order that uses up cache lines of source and panel (16 words) while they are cached.
template <class In, class Panel>
void pack_blocks(uint32_t* out, int64_t w_step, int64_t j_step, const PanelSource<In, Panel>& source, int64_t rows,
                 int64_t padded_rows) {
  for (int64_t w = 0; w < source.words(); w += 16) {
    for (int64_t j = 0; j < padded_rows; j += 8) {
      pack_block(out, w_step, j_step, source, w, j, rows);
      if (w + 8 < source.words()) pack_block(out, w_step, j_step, source, w + 8, j, rows);
    }
  }
}

/// B panel: out[w * width + j] for j < width (a multiple of 8), zero from `columns` on.
template <class In, class Panel>
void pack_b(uint32_t* out, const PanelSource<In, Panel>& source, int64_t columns, int64_t width) {
  pack_blocks(out, width, 1, source, columns, width);
}

/// A panel: out[j * stride + w] for j < rows.
template <class In, class Panel>
void pack_a(uint32_t* out, int64_t stride, const PanelSource<In, Panel>& source, int64_t rows) {
  pack_blocks(out, 1, stride, source, rows, rows);
}

}  // namespace llmtrain::host
