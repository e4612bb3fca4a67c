#include "kernels/adapter.hpp"
#include "kernels/adapter_checks.hpp"
#include "kernels/cuda/column_sum.cuh"
#include "kernels/cuda/dequantize.cuh"
#include "kernels/cuda/dropout_row.cuh"
#include "kernels/cuda/launch.cuh"

namespace llmtrain {

namespace {

using namespace cuda;

/// to = or += scale from, for a block with `columns` columns in matrices of these widths.
template <class T>
struct ScaleBlock {
  T* to;
  int64_t to_width;
  const T* from;
  int64_t from_width, columns;
  float scale;
  bool accumulate;
  __device__ void operator()(int64_t i) const {
    const int64_t row = i / columns, column = i % columns;
    T* out = to + row * to_width + column;
    const float value = scale * load(from + row * from_width + column);
    store(out, accumulate ? load(out) + value : value);
  }
};

constexpr int64_t neighbours = 8;

template <class T>
struct DropoutRows {
  T* out;
  const T* in;
  RowDropout rows;
  int64_t elements;
  bool accumulate;
  __device__ void operator()(int64_t pack) const {
    const int64_t i = pack * neighbours;
    PackOf<neighbours> values = load_pack<neighbours>(in, i, elements);
    const PackOf<neighbours> factors = rows.scales_at<neighbours>(i, elements);
    for (int k = 0; k < neighbours; ++k) values.v[k] *= factors.v[k];
    if (accumulate) {
      const PackOf<neighbours> before = load_pack<neighbours>(out, i, elements);
      for (int k = 0; k < neighbours; ++k) values.v[k] += before.v[k];
    }
    store_pack(out, i, elements, values);
  }
};

__device__ float norm_of(double squares) { return squares == 0 ? 1 : static_cast<float>(sqrt(squares)); }

/// Four rows by a warp, so that what is read of `a` serves all of them; each lane has two columns of every 64. The sum
/// of a row has the order of one that is alone.
template <class T, bool roots>
struct RowNorms {
  static constexpr int64_t rows_at_once = 4;
  static constexpr int columns_at_once = 2;
  float* norms;
  const T *w, *t, *a;
  int64_t rows, columns, rank;
  __device__ void operator()(int64_t i) const {
    const int64_t first = i * rows_at_once;
    double sums[rows_at_once] = {};
    for (int64_t c = lane(); c < columns; c += columns_at_once * warp_lanes) {
      const bool both = c + warp_lanes < columns;
      const int64_t other = both ? c + warp_lanes : c;
      float values[rows_at_once][columns_at_once];
      LLMTRAIN_UNROLL
      for (int r = 0; r < rows_at_once; ++r) {
        const T* from = w + row(first + r) * columns;
        values[r][0] = load(from + c);
        values[r][1] = load(from + other);
      }
      for (int64_t k = 0; k < rank; ++k) {
        const float right[columns_at_once] = {load(a + k * columns + c), load(a + k * columns + other)};
        LLMTRAIN_UNROLL
        for (int r = 0; r < rows_at_once; ++r) {
          const float left = load(t + row(first + r) * rank + k);
          values[r][0] += left * right[0];
          values[r][1] += left * right[1];
        }
      }
      LLMTRAIN_UNROLL
      for (int r = 0; r < rows_at_once; ++r) {
        sums[r] += static_cast<double>(values[r][0]) * static_cast<double>(values[r][0]);
        if (both) sums[r] += static_cast<double>(values[r][1]) * static_cast<double>(values[r][1]);
      }
    }
    LLMTRAIN_UNROLL
    for (int r = 0; r < rows_at_once; ++r) {
      const double sum = warp_sum(sums[r]);
      if (lane() == 0 && first + r < rows) norms[first + r] = roots ? norm_of(sum) : static_cast<float>(sum);
    }
  }
  /// A row that exists.
  __device__ int64_t row(int64_t wanted) const { return std::min(wanted, rows - 1); }
};

template <bool roots>
void sum_squares(const Tensor& out, const WeightMatrix& weight, const Tensor& t, const Tensor& a, Stream& stream) {
  check_row_norms(out, weight, t, a);
  const Tensor w = dense_of(weight, stream);
  dispatch(w, [&]<class T>(T* weights) {
    using Kernel = RowNorms<T, roots>;
    for_each_warp(blocks_for(w.dim(0), Kernel::rows_at_once), stream,
                  Kernel{out.as<float>(), weights, static_cast<const T*>(t.data), static_cast<const T*>(a.data),
                         w.dim(0), w.dim(1), t.empty() ? 0 : t.dim(1)});
  });
}

struct Roots {
  float* x;
  __device__ void operator()(int64_t i) const { x[i] = norm_of(x[i]); }
};

template <class T, class Numerator, class Bias>
struct ScaleColumns {
  T* to;
  const T* from;
  const Numerator* numerators;
  const float* denominators;
  const Bias* bias;
  int64_t columns;
  __device__ void operator()(int64_t i) const {
    const int64_t c = i % columns;
    const float shift = bias == nullptr ? 0.0f : load(bias + c);
    store(to + i, load(from + i) * (load(numerators + c) / denominators[c]) + shift);
  }
};

template <class T>
struct ColumnDots {
  const T *a, *b;
  const float* denominators;
  int64_t columns;
  __device__ void operator()(int64_t row, int64_t column, float* sums) const {
    const int64_t i = row * columns + column;
    sums[0] += load(a + i) * load(b + i) / denominators[column];
  }
};

}  // namespace

void set_block(const Tensor& to, const BlockPlace& place, const Tensor& from, float scale, Stream& stream,
               bool accumulate) {
  check_block(to, place, from);
  const int64_t width = to.dim(1), columns = from.dim(1);
  dispatch(to, [&]<class T>(T* out) {
    for_each(from.numel(), stream,
             ScaleBlock<T>{out + place.row * width + place.column, width, static_cast<const T*>(from.data), columns,
                           columns, scale, accumulate});
  });
}

void get_block(const Tensor& to, const Tensor& from, const BlockPlace& place, float scale, bool accumulate,
               Stream& stream) {
  check_block(from, place, to);
  const int64_t width = from.dim(1), columns = to.dim(1);
  dispatch(to, [&]<class T>(T* out) {
    for_each(to.numel(), stream,
             ScaleBlock<T>{out, columns, static_cast<const T*>(from.data) + place.row * width + place.column, width,
                           columns, scale, accumulate});
  });
}

void dropout_rows(const Tensor& out, const Tensor& in, const Batch& batch, const Dropout& dropout, bool accumulate,
                  Stream& stream) {
  check_dropout_rows(out, in, batch);
  const RowDropout rows(dropout, batch, in.dim(1));
  dispatch(in, [&]<class T>(T* from) {
    for_each((in.numel() + neighbours - 1) / neighbours, stream,
             DropoutRows<T>{static_cast<T*>(out.data), from, rows, in.numel(), accumulate});
  });
}

void row_norms(const Tensor& norms, const WeightMatrix& w, const Tensor& t, const Tensor& a, Stream& stream) {
  sum_squares<true>(norms, w, t, a, stream);
}

void row_squares(const Tensor& squares, const WeightMatrix& w, const Tensor& t, const Tensor& a, Stream& stream) {
  sum_squares<false>(squares, w, t, a, stream);
}

void roots_of_squares(const Tensor& squares, Stream& stream) {
  for_each(squares.numel(), stream, Roots{squares.as<float>()});
}

void scale_columns(const Tensor& to, const Tensor& from, const Tensor& numerators, const Tensor& denominators,
                   const Tensor& bias, Stream& stream) {
  check_scale_columns(to, from, numerators, denominators, bias);
  dispatch(from, numerators, [&]<class T, class N>(T* in, N* factors) {
    const auto run = [&]<class B>(const B* shifts) {
      for_each(
          from.numel(), stream,
          ScaleColumns<T, N, B>{static_cast<T*>(to.data), in, factors, denominators.as<float>(), shifts, from.dim(1)});
    };
    if (bias.dtype == from.dtype || bias.empty()) {
      run(static_cast<const T*>(bias.data));
    } else {
      run(static_cast<const float*>(bias.data));
    }
  });
}

void column_dots(const Tensor& dots, const Tensor& a, const Tensor& b, const Tensor& denominators, bool accumulate,
                 Stream& stream) {
  check_column_dots(dots, a, b, denominators);
  const int64_t columns = a.dim(1);
  dispatch(a, [&]<class T>(T* left) {
    column_sums(a.dim(0), columns, {dots.as<float>()}, accumulate, stream,
                ColumnDots<T>{left, static_cast<const T*>(b.data), denominators.as<float>(), columns});
  });
}

}  // namespace llmtrain
