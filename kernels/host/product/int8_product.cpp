#include "kernels/host/product/int8_product.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "device/processor.hpp"
#include "kernels/host/element.hpp"
#include "kernels/host/parallel.hpp"
#include "kernels/host/product/int8_dots.hpp"
#include "kernels/int8_arithmetic.hpp"

namespace llmtrain::host {

namespace {

constexpr int64_t tile_rows = 64, tile_columns = 32;  ///< of y that a thread computes at once
constexpr int64_t wide_at_once = 64;                  ///< columns of x in the compute type that are read at once

constexpr int64_t padded(int64_t columns) { return (columns + int8_padding - 1) / int8_padding * int8_padding; }

void add_dots(const Int8Dots& d, int64_t rows) {
#if defined(__x86_64__)
  static const bool avx512 = processor_has(Instructions::avx512);
  if (avx512) return add_int8_dots_avx512(d, rows);
#endif
  rows == 4 ? Int8DotsOf<Float8, 4>::run(d) : Int8DotsOf<Float8, 1>::run(d);
}

/// Inputs [rows, columns] of type T and what is made of them, in workspace().
template <class T>
class Int8Inputs {
 public:
  Int8Inputs(const Tensor& x, float threshold, bool by_row)
      : x_(static_cast<const T*>(x.data)),
        rows_(x.dim(0)),
        columns_(x.dim(1)),
        threshold_(threshold),
        by_row_(by_row),
        scales_(reinterpret_cast<float*>(workspace(int8_workspace_bytes(rows_, columns_)))),
        outliers_(reinterpret_cast<int32_t*>(scales_ + rows_)),
        codes_(reinterpret_cast<int16_t*>(outliers_ + columns_)) {
    if (threshold > 0) find_outliers();
    parallel_for(rows_, [this](int64_t row) { quantize(row); });
  }

  int64_t rows() const { return rows_; }
  int64_t outliers() const { return count_; }
  int64_t column(int64_t outlier) const { return outliers_[outlier]; }
  float scale(int64_t row) const { return scales_[row]; }
  const int16_t* codes(int64_t row) const { return codes_ + row * padded(columns_); }
  /// The input that an outlier column multiplies; 0 if it has a code.
  float value(int64_t row, int64_t outlier) const {
    const int64_t at = row * columns_ + outliers_[outlier];
    return by_row_ && !is_outlier(rounded(at), threshold_) ? 0.0f : load(x_ + at);
  }

 private:
  float rounded(int64_t at) const { return static_cast<float>(f16(load(x_ + at))); }

  /// Lists the columns with an outlier in any row, in ascending order.
  void find_outliers() {
    constexpr int64_t block = 64;
    parallel_blocks(columns_, block, [this](int64_t begin, int64_t end) {
      std::fill(outliers_ + begin, outliers_ + end, 0);
      for (int64_t row = 0; row < rows_; ++row) {
        for (int64_t c = begin; c < end; ++c) outliers_[c] |= is_outlier(rounded(row * columns_ + c), threshold_);
      }
    });
    for (int64_t c = 0; c < columns_; ++c) {
      if (outliers_[c] != 0) outliers_[count_++] = static_cast<int32_t>(c);
    }
  }

  void quantize(int64_t row) {
    uint32_t largest = 0;  // of the bits, so that a NaN is
    const int64_t first = row * columns_;
    for (int64_t c = 0; c < columns_; ++c) {
      const float input = rounded(first + c);
      if (!is_outlier(input, threshold_)) largest = std::max(largest, std::bit_cast<uint32_t>(input) & 0x7FFFFFFFu);
    }
    scales_[row] = std::bit_cast<float>(largest);
    const float factor = int8_factor(scales_[row]);
    int16_t* to = codes_ + row * padded(columns_);
    for (int64_t c = 0; c < columns_; ++c) {
      const float input = rounded(first + c);
      to[c] = static_cast<int16_t>(is_outlier(input, threshold_) ? 0 : int8_code(input, factor));
    }
    std::fill(to + columns_, to + padded(columns_), int16_t{0});
    for (int64_t i = 0; i < count_ && !by_row_; ++i) to[outliers_[i]] = 0;
  }

  const T* x_;
  int64_t rows_, columns_;
  float threshold_;
  bool by_row_;
  int64_t count_ = 0;
  float* scales_;
  int32_t* outliers_;
  int16_t* codes_;
};

/// Columns [first, first + count) of y.
struct OutputColumns {
  int64_t first, count;
};

template <class T, class Out>
class Int8Product {
 public:
  Int8Product(const Tensor& y, const Int8Inputs<T>& x, const QuantizedMatrix& w, const Tensor& bias,
              const LowRank& added)
      : y_(static_cast<Out*>(y.data)), x_(x), w_(w), bias_(bias), added_(added) {}

  void run() const {
    parallel_blocks(w_.rows, tile_columns, [this](int64_t begin, int64_t end) {
      for (int64_t row = 0; row < x_.rows(); row += tile_rows) {
        tile({begin, end - begin}, row, std::min(tile_rows, x_.rows() - row));
      }
    });
  }

 private:
  const int8_t* codes(int64_t row) const {
    const QuantizedRows& slice = w_.slice_of(row);
    return reinterpret_cast<const int8_t*>(slice.chunks) + (row - slice.first_row + slice.skipped) * w_.columns;
  }
  float scale(int64_t row) const {
    const QuantizedRows& slice = w_.slice_of(row);
    return slice.table[row - slice.first_row + slice.skipped];
  }
  float bias(int64_t column) const {
    using Half = std::conditional_t<std::is_same_v<T, float>, bf16, T>;  // for a bias that is not fp32
    if (bias_.empty()) return 0;
    return bias_.dtype == DType::f32 ? bias_.as<float>()[column] : load(bias_.as<Half>() + column);
  }

  void tile(const OutputColumns& columns, int64_t first, int64_t rows) const {
    int64_t sums[tile_rows * tile_columns] = {};
    float wide[tile_rows * tile_columns] = {};
    for (int64_t k = 0; k < w_.columns; k += int8_sum_length) add_codes(sums, columns, first, rows, k);
    const int64_t count = x_.outliers() + added_.rank();
    for (int64_t i = 0; i < count; i += wide_at_once) {
      add_wide(wide, columns, first, rows, {i, std::min(wide_at_once, count - i)});
    }
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns.count; ++c) {
        const int64_t column = columns.first + c, at = r * tile_columns + c;
        const float product = int8_product(sums[at], x_.scale(first + r), scale(column));
        store(y_ + (first + r) * w_.rows + column, product + bias(column) + wide[at]);
      }
    }
  }

  void add_codes(int64_t* sums, const OutputColumns& columns, int64_t first, int64_t rows, int64_t k) const {
    const int64_t count = std::min(int8_sum_length, w_.columns - k);
    alignas(64) int16_t w[tile_columns * int8_sum_length];
    for (int64_t c = 0; c < (columns.count + 1) / 2 * 2; ++c) {
      int16_t* to = w + c * int8_sum_length;
      const int8_t* from = c < columns.count ? codes(columns.first + c) + k : nullptr;
      for (int64_t i = 0; i < count && from != nullptr; ++i) to[i] = from[i];
      std::fill(to + (from == nullptr ? 0 : count), to + padded(count), int16_t{0});
    }
    const int64_t stride = padded(w_.columns);
    for (int64_t r = 0; r < rows;) {
      const int64_t together = r + 4 <= rows ? 4 : 1;
      for (int64_t c = 0; c < columns.count; c += 2) {
        add_dots({x_.codes(first + r) + k, stride, w + c * int8_sum_length, int8_sum_length, padded(count),
                  sums + r * tile_columns + c, tile_columns},
                 together);
      }
      r += together;
    }
  }

  /// Adds products in the compute type: those of outlier columns and, after them, of the added product.
  void add_wide(float* sums, const OutputColumns& columns, int64_t first, int64_t rows,
                const OutputColumns& inputs) const {
    const int64_t outliers = x_.outliers(), rank = added_.rank();
    const auto* left = static_cast<const T*>(added_.left.data);
    const auto* right = static_cast<const T*>(added_.right.data);
    alignas(64) float w[wide_at_once * tile_columns] = {};
    for (int64_t i = 0; i < inputs.count; ++i) {
      const int64_t input = inputs.first + i;
      for (int64_t c = 0; c < columns.count; ++c) {
        const int64_t row = columns.first + c;
        float value = 0;
        if (input < outliers) {
          const auto code = static_cast<float>(codes(row)[x_.column(input)]);
          value = rounded_to(dtype_of<T>, rounded_product(rounded_product(code, scale(row)), int8_step));
        } else {
          value = load(right + row * rank + input - outliers);
        }
        w[i * tile_columns + c] = value;
      }
    }
    for (int64_t r = 0; r < rows; ++r) {
      float* to = sums + r * tile_columns;
      for (int64_t i = 0; i < inputs.count; ++i) {
        const int64_t input = inputs.first + i;
        const float x =
            input < outliers ? x_.value(first + r, input) : load(left + (first + r) * rank + input - outliers);
        for (int64_t c = 0; c < tile_columns; ++c) to[c] += x * w[i * tile_columns + c];
      }
    }
  }

  Out* y_;
  const Int8Inputs<T>& x_;
  const QuantizedMatrix& w_;
  const Tensor& bias_;
  const LowRank& added_;
};

}  // namespace

int64_t int8_workspace_bytes(int64_t rows, int64_t columns) {
  return rows * (static_cast<int64_t>(sizeof(float)) + padded(columns) * static_cast<int64_t>(sizeof(int16_t))) +
         columns * static_cast<int64_t>(sizeof(int32_t));
}

void int8_forward(const Tensor& y, const Tensor& x, const WeightMatrix& w, const Tensor& bias, ProductRole role,
                  const LowRank& added) {
  const QuantizedMatrix& matrix = w.quantized();
  dispatch(y, x, [&]<class Out, class T>(Out*, const T*) {
    const Int8Inputs<T> inputs(x, static_cast<float>(matrix.format.outlier_threshold), role != ProductRole::training);
    Int8Product<T, Out>(y, inputs, matrix, bias, added).run();
  });
}

}  // namespace llmtrain::host
