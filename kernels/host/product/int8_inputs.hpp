#pragma once
// Inputs of a product of LLM.int8: codes, scales of rows, and columns with outliers.

#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>

#include "kernels/host/fast_math.hpp"
#include "kernels/host/parallel.hpp"
#include "kernels/host/product/int8_dots.hpp"
#include "kernels/host/special_functions.hpp"
#include "kernels/int8_arithmetic.hpp"

namespace llmtrain::host {

/// Layout of the codes of inputs [rows, columns]. Bytes, for micro-kernels, have 128 added; blocks of columns follow
/// one another, whose rows are not pages apart. Otherwise codes are int16, padded rows after one another.
struct Int8Layout {
  static constexpr int64_t block = 1024, block_row = block + 64, byte_padding = 64, row_padding = 16;

  int64_t rows = 0, columns = 0;
  bool bytes = false;

  int64_t padded_rows() const { return (rows + row_padding - 1) / row_padding * row_padding; }
  int64_t padded_columns() const {
    const int64_t padding = bytes ? byte_padding : int8_padding;
    return (columns + padding - 1) / padding * padding;
  }
  int64_t blocks() const { return (columns + block - 1) / block; }
  /// Elements before a code whose column is a multiple of the block.
  int64_t at(int64_t row, int64_t column) const {
    if (!bytes) return row * padded_columns() + column;
    return (column / block * padded_rows() + row) * block_row;
  }
  int64_t code_bytes() const {
    return bytes ? blocks() * padded_rows() * block_row
                 : rows * padded_columns() * static_cast<int64_t>(sizeof(int16_t));
  }
  /// Bytes before the codes: scales and outlier columns.
  int64_t head_bytes() const { return ((rows + columns) * 4 + 63) / 64 * 64; }
};

/// Inputs of type T, and what is made of them in `memory`: head_bytes() and code_bytes() of the layout.
template <class T>
class Int8Inputs {
 public:
  Int8Inputs(const Tensor& x, float threshold, bool by_row, const Int8Layout& layout, char* memory)
      : x_(static_cast<const T*>(x.data)),
        layout_(layout),
        threshold_(threshold),
        by_row_(by_row),
        scales_(reinterpret_cast<float*>(memory)),
        outliers_(reinterpret_cast<int32_t*>(scales_ + layout.rows)),
        codes_(memory + layout.head_bytes()) {
    std::fill(outliers_, outliers_ + layout.columns, 0);
    parallel_for(layout.rows, [this](int64_t row) { measure(row); });
    for (int64_t c = 0; c < layout.columns; ++c) {
      if (outliers_[c] != 0) outliers_[count_++] = static_cast<int32_t>(c);
    }
    parallel_for(layout.rows, [this](int64_t row) {
      layout_.bytes ? quantize(row, reinterpret_cast<uint8_t*>(codes_), uint8_t{128})
                    : quantize(row, reinterpret_cast<int16_t*>(codes_), int16_t{0});
    });
  }

  const Int8Layout& layout() const { return layout_; }
  int64_t rows() const { return layout_.rows; }
  int64_t outliers() const { return count_; }
  int64_t column(int64_t outlier) const { return outliers_[outlier]; }
  float scale(int64_t row) const { return scales_[row]; }
  const int16_t* codes(int64_t row) const { return reinterpret_cast<const int16_t*>(codes_) + layout_.at(row, 0); }
  /// Rows [row, ...) of a block of bytes.
  const char* bytes(int64_t row, int64_t block) const { return codes_ + layout_.at(row, block * Int8Layout::block); }
  /// The input that an outlier column multiplies; 0 if it has a code.
  float value(int64_t row, int64_t outlier) const {
    const T* at = x_ + row * layout_.columns + outliers_[outlier];
    return by_row_ && !is_outlier(static_cast<float>(f16(load(at))), threshold_) ? 0.0f : load(at);
  }

 private:
  using Bits = BitsOf<Float8>::Unsigned;
  using Integers = BitsOf<Float8>::Signed;

  /// Elements from `column` on, rounded to fp16; zeros past the end of the row.
  Float8 rounded(int64_t row, int64_t column) const {
    f16 half[8];
    store_lanes(half, load_up_to(x_ + row * layout_.columns + column, layout_.columns - column));
    return load8(half);
  }
  /// All bits of the lanes that are outliers.
  Integers outlying(Float8 input) const {
    const float limit = threshold_ > 0 ? threshold_ : std::numeric_limits<float>::quiet_NaN();
    return magnitude_of(input) >= limit;
  }

  /// Finds a row's scale and outliers, whose columns it marks.
  void measure(int64_t row) {
    Bits largest{};  // bits of magnitudes, so that a NaN is the largest
    Integers any{};
    const auto mark = [&](int64_t c, Integers found) {
      for (int64_t i = 0; i < 8; ++i) {
        if (found[i] != 0) std::atomic_ref(outliers_[c + i]).store(1, std::memory_order_relaxed);
      }
    };
    for (int64_t c = 0; c < layout_.columns; c += 64) {
      any = Integers{};
      for (int64_t i = c; i < std::min(c + 64, layout_.columns); i += 8) {
        const Float8 input = rounded(row, i);
        const Integers found = outlying(input);
        const Bits magnitude = std::bit_cast<Bits>(magnitude_of(input)) & ~std::bit_cast<Bits>(found);
        largest = magnitude > largest ? magnitude : largest;
        any |= found;
      }
      int32_t some = 0;
      for (int i = 0; i < 8; ++i) some |= any[i];
      for (int64_t i = c; some != 0 && i < std::min(c + 64, layout_.columns); i += 8)
        mark(i, outlying(rounded(row, i)));
    }
    uint32_t bits = 0;
    for (int i = 0; i < 8; ++i) bits = std::max(bits, largest[i]);
    scales_[row] = std::bit_cast<float>(bits);
  }

  template <class Code>
  void quantize(int64_t row, Code* codes, Code zero) {
    using Codes [[gnu::vector_size(8 * sizeof(Code))]] = Code;
    const float factor = int8_factor(scales_[row]);
    const int64_t end = layout_.padded_columns(), block = layout_.bytes ? Int8Layout::block : end;
    for (int64_t first = 0; first < end; first += block) {
      Code* to = codes + layout_.at(row, first);
      for (int64_t c = first; c < std::min(first + block, end); c += 8, to += 8) {
        Integers code{};
        if (c < layout_.columns) {
          const Float8 input = rounded(row, c);
          // int8_code of the inputs: the product is rounded, then the integer.
          const Float8 product = fused(input, Float8{} + factor, 0.0f);
          const Float8 nearest = (product + rounding_magic) - rounding_magic;
          const Integers valid = (magnitude_of(nearest) <= 127.0f) & ~outlying(input);
          code = __builtin_convertvector(std::bit_cast<Float8>(std::bit_cast<Integers>(nearest) & valid), Integers);
        }
        const Codes narrow = __builtin_convertvector(code + static_cast<int32_t>(zero), Codes);
        std::memcpy(to, &narrow, sizeof narrow);
      }
    }
    for (int64_t i = 0; i < count_ && !by_row_; ++i) {
      const int64_t c = outliers_[i], in_block = c % block;
      codes[layout_.at(row, c - in_block) + in_block] = zero;
    }
  }

  const T* x_;
  Int8Layout layout_;
  float threshold_;
  bool by_row_;
  int64_t count_ = 0;
  float* scales_;
  int32_t* outliers_;
  char* codes_;
};

}  // namespace llmtrain::host
