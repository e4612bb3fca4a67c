#include <bit>

#include "kernels/cuda/int8_product.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/shared_memory.cuh"
#include "kernels/int8_arithmetic.hpp"

namespace llmtrain::cuda {

namespace {

/// Inputs [rows, columns] of type T; their scales, outlier columns and codes are in scratch().
template <class T>
struct Int8Inputs {
  const T* x;
  int64_t rows, columns;
  float threshold;
  bool by_row;
  float* scales;
  int32_t* flags;     ///< whether a column has an outlier
  int32_t* outliers;  ///< the columns that have one, in ascending order
  int32_t* count;     ///< of them
  int8_t* codes;

  __device__ float rounded(int64_t at) const { return static_cast<float>(f16(load(x + at))); }
  /// The input that an outlier column multiplies; 0 if it has a code.
  __device__ float value(int64_t row, int64_t column) const {
    const int64_t at = row * columns + column;
    return by_row && !is_outlier(rounded(at), threshold) ? 0.0f : load(x + at);
  }
};

template <class T>
struct FindOutliers {
  Int8Inputs<T> in;
  __device__ void operator()(int64_t column) const {
    int32_t found = 0;
    for (int64_t row = 0; row < in.rows; ++row) {
      found |= is_outlier(in.rounded(row * in.columns + column), in.threshold) ? 1 : 0;
    }
    in.flags[column] = found;
  }
};

/// Each thread lists the outliers of consecutive columns, after those of the threads before it.
struct ListOutliers {
  static constexpr int threads = 256;
  const int32_t* flags;
  int32_t *outliers, *count;
  int64_t columns;
  __device__ void operator()() const {
    LLMTRAIN_SHARED(int32_t[threads], counts);
    const int64_t each = (columns + threads - 1) / threads, first = threadIdx.x * each;
    const int64_t end = std::min(columns, first + each);
    int32_t own = 0;
    for (int64_t c = first; c < end; ++c) own += flags[c];
    counts[threadIdx.x] = own;
    __syncthreads();
    int32_t at = 0;
    for (unsigned t = 0; t < threadIdx.x; ++t) at += counts[t];
    if (threadIdx.x == threads - 1) *count = at + own;
    for (int64_t c = first; c < end; ++c) {
      if (flags[c] != 0) outliers[at++] = static_cast<int32_t>(c);
    }
  }
};

/// A warp quantises a row.
template <class T>
struct QuantizeRow {
  Int8Inputs<T> in;
  __device__ void operator()(int64_t row) const {
    uint32_t largest = 0;  // of the bits, so that a NaN is
    const int64_t first = row * in.columns;
    for (int64_t c = lane(); c < in.columns; c += warp_lanes) {
      const float input = in.rounded(first + c);
      const uint32_t bits = std::bit_cast<uint32_t>(input) & 0x7FFFFFFFu;
      if (!is_outlier(input, in.threshold) && bits > largest) largest = bits;
    }
    largest = warp_maximum(largest);
    const auto scale = std::bit_cast<float>(largest);
    if (lane() == 0) in.scales[row] = scale;
    const float factor = int8_factor(scale);
    for (int64_t c = lane(); c < in.columns; c += warp_lanes) {
      const float input = in.rounded(first + c);
      const bool outlier = in.by_row || in.threshold <= 0 ? is_outlier(input, in.threshold) : in.flags[c] != 0;
      in.codes[first + c] = static_cast<int8_t>(outlier ? 0 : int8_code(input, factor));
    }
  }
};

/// A slice of the weight, and its columns of y.
template <class Y>
struct Int8Outputs {
  Y* y;
  int64_t stride;  ///< of y's rows
  int64_t columns;
  const int8_t* codes;
  const float* scales;
};

/// Products with rows of A [M, rank], for the columns of a slice; rank 0: none.
template <class T>
struct AddedProduct {
  const T *left, *right;
  int64_t rank;
};

/// A block computes a tile of y, a thread a square of it.
template <class T, class Y, class B>
struct Int8Tiles {
  static constexpr int threads = 256, side = 64, square = 4, depth = 64;  ///< codes of a row that are held at once
  Int8Inputs<T> in;
  Int8Outputs<Y> out;
  const B* bias;
  AddedProduct<T> added;

  /// Codes [first, first + depth) along k of `side` rows from `row` on.
  __device__ void hold(int8_t (*to)[depth + 4], const int8_t* from, int64_t row, int64_t rows, int64_t first) const {
    for (int i = static_cast<int>(threadIdx.x); i < side * depth; i += threads) {
      const int64_t r = row + i / depth, k = first + i % depth;
      to[i / depth][i % depth] = r < rows && k < in.columns ? from[r * in.columns + k] : int8_t{0};
    }
  }

  __device__ void operator()() const {
    LLMTRAIN_SHARED(int8_t[side][depth + 4], inputs);
    LLMTRAIN_SHARED(int8_t[side][depth + 4], weights);
    const int64_t row = int64_t{blockIdx.y} * side, column = int64_t{blockIdx.x} * side;
    const int r0 = static_cast<int>(threadIdx.x) / 16 * square, c0 = static_cast<int>(threadIdx.x) % 16 * square;
    int64_t sums[square][square] = {};
    int32_t part[square][square] = {};
    for (int64_t k = 0; k < in.columns; k += depth) {
      hold(inputs, in.codes, row, in.rows, k);
      hold(weights, out.codes, column, out.columns, k);
      __syncthreads();
      for (int i = 0; i < depth; ++i) {
        LLMTRAIN_UNROLL
        for (int r = 0; r < square; ++r) {
          LLMTRAIN_UNROLL
          for (int c = 0; c < square; ++c) part[r][c] += inputs[r0 + r][i] * weights[c0 + c][i];
        }
      }
      __syncthreads();  // they have been read
      if ((k + depth) % int8_sum_length == 0 || k + depth >= in.columns) {
        LLMTRAIN_UNROLL
        for (int i = 0; i < square * square; ++i) {
          sums[i / square][i % square] += part[i / square][i % square];
          part[i / square][i % square] = 0;
        }
      }
    }
    finish_square(row + r0, column + c0, sums);
  }

  /// Unrolled, so that sums stay in registers.
  __device__ void finish_square(int64_t row, int64_t column, const int64_t (&sums)[square][square]) const {
    LLMTRAIN_UNROLL
    for (int r = 0; r < square; ++r) {
      LLMTRAIN_UNROLL
      for (int c = 0; c < square; ++c) {
        if (row + r < in.rows && column + c < out.columns) finish(row + r, column + c, sums[r][c]);
      }
    }
  }

  __device__ void finish(int64_t row, int64_t column, int64_t sum) const {
    const float scale = out.scales[column];
    float wide = 0;
    const int32_t outliers = in.threshold > 0 ? *in.count : 0;
    for (int32_t i = 0; i < outliers; ++i) {
      const int64_t k = in.outliers[i];
      const auto code = static_cast<float>(out.codes[column * in.columns + k]);
      T weight;
      store(&weight, rounded_product(rounded_product(code, scale), int8_step));
      wide += in.value(row, k) * load(&weight);
    }
    for (int64_t i = 0; i < added.rank; ++i) {
      wide += load(added.left + row * added.rank + i) * load(added.right + column * added.rank + i);
    }
    const float shift = bias == nullptr ? 0.0f : load(bias + column);
    store(out.y + row * out.stride + column, int8_product(sum, in.scales[row], scale) + shift + wide);
  }
};

constexpr int64_t aligned(int64_t bytes) { return (bytes + 15) / 16 * 16; }

template <class T>
Int8Inputs<T> quantized_inputs(const Tensor& x, float threshold, bool by_row, Stream& stream) {
  const int64_t rows = x.dim(0), columns = x.dim(1);
  auto* memory = static_cast<char*>(scratch(int8_scratch_bytes(rows, columns)));
  const auto take = [&]<class A>(A*, int64_t count) {
    auto* result = reinterpret_cast<A*>(memory);
    memory += aligned(count * static_cast<int64_t>(sizeof(A)));
    return result;
  };
  Int8Inputs<T> in{
      static_cast<const T*>(x.data), rows, columns, threshold, by_row, nullptr, nullptr, nullptr, nullptr, nullptr};
  in.scales = take(in.scales, rows);
  in.flags = take(in.flags, columns);
  in.outliers = take(in.outliers, columns);
  in.count = take(in.count, 1);
  in.codes = take(in.codes, rows * columns);
  if (threshold > 0) {
    for_each(columns, stream, FindOutliers<T>{in});
    launch({}, stream, ListOutliers{in.flags, in.outliers, in.count, columns});
  }
  for_each_warp(rows, stream, QuantizeRow<T>{in});
  return in;
}

}  // namespace

int64_t int8_scratch_bytes(int64_t rows, int64_t columns) {
  return aligned(rows * 4) + 2 * aligned(columns * 4) + aligned(4) + aligned(rows * columns);
}

void int8_forward(const Tensor& y, const Tensor& x, const WeightMatrix& w, const Tensor& bias, Stream& stream,
                  ProductRole role, const LowRank& added) {
  const QuantizedMatrix& matrix = w.quantized();
  const auto threshold = static_cast<float>(matrix.format.outlier_threshold);
  dispatch(y, x, [&]<class Y, class T>(Y* to, T*) {
    const Int8Inputs<T> in = quantized_inputs<T>(x, threshold, role != ProductRole::training, stream);
    const auto run = [&]<class B>(B* shift) {
      for (int s = 0; s < matrix.count; ++s) {
        const QuantizedRows& slice = matrix.slices[static_cast<size_t>(s)];
        const Int8Outputs<Y> out{to + slice.first_row, y.dim(1), slice.rows,
                                 reinterpret_cast<const int8_t*>(slice.chunks) + slice.skipped * matrix.columns,
                                 slice.table + slice.skipped};
        AddedProduct<T> more{static_cast<const T*>(added.left.data), static_cast<const T*>(added.right.data),
                             added.rank()};
        if (!added.empty()) more.right += slice.first_row * more.rank;
        using Tiles = Int8Tiles<T, Y, B>;
        launch({blocks_for(slice.rows, Tiles::side), blocks_for(in.rows, Tiles::side)}, stream,
               Tiles{in, out, shift == nullptr ? nullptr : shift + slice.first_row, more});
      }
    };
    bias.empty() ? run(static_cast<float*>(nullptr)) : dispatch(bias, run);
  });
}

}  // namespace llmtrain::cuda
