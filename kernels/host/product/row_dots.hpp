#pragma once
// Products of a few rows of inputs with rows of weights that are read once: decoding. Every sum has the order of
// lane_sum, whatever the vectors. row_dots_avx512.cpp compiles the templates for wider vectors, with instructions that
// the rest of the program must not contain: it calls only templates over V.

#include <cstdint>

#include "kernels/host/lanes.hpp"
#include "kernels/host/product/dequantize.hpp"

namespace llmtrain::host {

/// Up to this many rows, weights are read once, in place: packing them would cost more than the product.
inline constexpr int64_t few_rows = 4;

/// Sums of R rows of x, `stride` apart, times one of weights.
template <class V, int R>
class RowDots {
 public:
  static constexpr int64_t lanes = lanes_of<V>, parts = lane_count / lanes;

  /// Adds `count` elements: a multiple of lane_count in all calls but the last one.
  template <class T>
  void add(const float* x, int64_t stride, const T* w, int64_t count) {
    int64_t i = 0;
    for (; i + lane_count <= count; i += lane_count) {
      for (int64_t p = 0; p < parts; ++p) add(p, x + i + p * lanes, stride, load_lanes<V>(w + i + p * lanes));
    }
    for (int64_t p = 0; i < count; i += lanes, ++p) {
      const V weights = load_up_to<V>(w + i, count - i);
      for (int r = 0; r < R; ++r) sums_[r][p] += load_up_to<V>(x + r * stride + i, count - i) * weights;
    }
  }
  /// Adds the elements of part `part` of the lanes.
  void add(int64_t part, const float* x, int64_t stride, V weights) {
    for (int r = 0; r < R; ++r) sums_[r][part] += load_lanes<V>(x + r * stride) * weights;
  }
  void fold(double* out) const {
    for (int r = 0; r < R; ++r) {
      Float8 halves[2];
      static_assert(sizeof halves == sizeof sums_[r]);
      std::memcpy(halves, sums_[r], sizeof halves);
      out[r] = fold_lanes(halves[0] + halves[1]);
    }
  }

 private:
  V sums_[R][parts] = {};
};

/// Rows of dense weights, and the inputs they multiply.
template <class T>
struct DenseDots {
  const T* weights;  ///< the first row
  int64_t columns, rows;
  const float* x;  ///< rows of `columns` elements
  double* sums;    ///< [rows, few_rows]
};

/// DenseDotsOf<Float16>::run, for processors with AVX-512.
void dense_dots_avx512(const DenseDots<float>& d, int64_t x_rows);
void dense_dots_avx512(const DenseDots<bf16>& d, int64_t x_rows);
void dense_dots_avx512(const DenseDots<f16>& d, int64_t x_rows);

template <class V>
class DenseDotsOf {
 public:
  /// x_rows: 1 to few_rows.
  template <class T>
  static void run(const DenseDots<T>& d, int64_t x_rows) {
    if (x_rows == 1) return rows_of<1>(d);
    if (x_rows == 2) return rows_of<2>(d);
    x_rows == 3 ? rows_of<3>(d) : rows_of<few_rows>(d);
  }

 private:
  /// As many rows of weights at once as registers hold sums of, so that a loaded input is used for each.
  template <int R, class T>
  static void rows_of(const DenseDots<T>& d) {
    constexpr int together = lanes_of<V> == 16 ? 4 : R == 1 ? 2 : 1;
    int64_t row = 0;
    for (; row + together <= d.rows; row += together) some_rows<R, together>(d, row);
    for (; row < d.rows; ++row) some_rows<R, 1>(d, row);
  }

  template <int R, int J, class T>
  static void some_rows(const DenseDots<T>& d, int64_t row) {
    constexpr int64_t lanes = lanes_of<V>, parts = lane_count / lanes;
    const int64_t whole = d.columns / lane_count * lane_count;
    const T* w = d.weights + row * d.columns;
    RowDots<V, R> dots[J];
    for (int64_t i = 0; i < whole; i += lane_count) {
      for (int64_t p = 0; p < parts; ++p) {
        const int64_t at = i + p * lanes;
        for (int j = 0; j < J; ++j) dots[j].add(p, d.x + at, d.columns, load_lanes<V>(w + j * d.columns + at));
      }
    }
    for (int j = 0; j < J; ++j) {
      dots[j].add(d.x + whole, d.columns, w + j * d.columns + whole, d.columns - whole);
      dots[j].fold(d.sums + (row + j) * few_rows);
    }
  }
};

/// Rows of 4-bit weights in one slice, and the inputs they multiply.
struct QuantizedDots {
  DequantizedRun first;  ///< the first row of weights, without a destination
  int64_t rows;          ///< of weights
  const float* x;        ///< rows of `first.columns` elements
  double* sums;          ///< [rows, few_rows]
};

/// QuantizedDotsOf<Float16>::run, for processors with AVX-512.
void quantized_dots_avx512(const QuantizedDots& d, int64_t x_rows);

template <class V>
class QuantizedDotsOf {
 public:
  /// x_rows: 1 to few_rows.
  static void run(const QuantizedDots& d, int64_t x_rows) {
    if (x_rows == 1) return rows_of<1>(d);
    if (x_rows == 2) return rows_of<2>(d);
    x_rows == 3 ? rows_of<3>(d) : rows_of<few_rows>(d);
  }

 private:
  using Codes = Dequantizer<V>;

  template <int R>
  static void rows_of(const QuantizedDots& d) {
    constexpr int together = R == 1 ? 2 : 1;  // rows of weights: enough independent sums
    const bool whole_chunks = d.first.columns % chunk_elements == 0;
    const bool whole_blocks = d.first.columns % d.first.format.block_size == 0;
    int64_t row = 0;
    for (; whole_chunks && row + together <= d.rows; row += together) blocks_of_rows<R, together>(d, row);
    for (; whole_blocks && row < d.rows; ++row) blocks_of_rows<R, 1>(d, row);
    for (; row < d.rows; ++row) any_row<R>(d, row);
  }

  /// Blocks begin and end where rows do and, if J rows are multiplied together, so do chunks.
  template <int R, int J>
  static void blocks_of_rows(const QuantizedDots& d, int64_t row) {
    using Scales = typename Codes::Scales;
    constexpr int64_t lanes = lanes_of<V>, parts = lane_count / lanes;
    const DequantizedRun& run = d.first;
    const int64_t block = run.format.block_size, columns = run.columns, first = run.first + row * columns;
    RowDots<V, R> dots[J];
    const float* x = d.x;
    for (int64_t k = 0; k < columns;) {
      const int64_t begin = (first + k) % chunk_elements;
      const int64_t end = columns - k < chunk_elements - begin ? begin + columns - k : chunk_elements;
      const uint8_t* codes[J];
      Scales scales[J];
      for (int j = 0; j < J; ++j) {
        const int64_t e = first + j * columns + k;
        const uint8_t* record = Codes::record_of(run, e);
        scales[j] = Scales(run, record, e - begin);
        codes[j] = record + begin / 2;
      }
      k += end - begin;
      for (int64_t i = begin >> run.block_bits; i < end >> run.block_bits; ++i) {
        typename Codes::Values values[J];
        for (int j = 0; j < J; ++j) values[j] = Codes::values_of(run, scales[j].of(i));
        for (int64_t left = block; left > 0; left -= lane_count, x += lane_count) {
          for (int64_t p = 0; p < parts; ++p) {
            for (int j = 0; j < J; ++j) {
              dots[j].add(p, x + p * lanes, columns, Codes::look_up(values[j], codes[j] + p * lanes / 2));
            }
          }
          for (int j = 0; j < J; ++j) codes[j] += lane_count / 2;
        }
      }
    }
    for (int j = 0; j < J; ++j) dots[j].fold(d.sums + (row + j) * few_rows);
  }

  template <int R>
  static void any_row(const QuantizedDots& d, int64_t row) {
    constexpr int64_t at_once = 1024;
    alignas(64) float values[at_once];
    DequantizedRun run = d.first;
    run.first += row * run.columns;
    run.out = values;
    RowDots<V, R> dots;
    for (int64_t k = 0; k < run.columns; k += at_once, run.first += at_once) {
      run.count = run.columns - k < at_once ? run.columns - k : at_once;
      Codes::run(run);
      dots.add(d.x + k, run.columns, values, run.count);
    }
    dots.fold(d.sums + row * few_rows);
  }
};

}  // namespace llmtrain::host
