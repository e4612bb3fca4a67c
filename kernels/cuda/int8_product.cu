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
  float* scales = nullptr;
  int32_t* flags = nullptr;     ///< whether a column has an outlier
  int32_t* outliers = nullptr;  ///< the columns that have one, in ascending order
  int32_t* count = nullptr;     ///< of them
  int8_t* codes = nullptr;
  int32_t* sums = nullptr;  ///< of products of codes, of some rows

  __device__ float rounded(int64_t at) const { return static_cast<float>(f16(load(x + at))); }
  /// The inputs from one column of a row on, rounded to fp16; zeros past its end.
  __device__ PackOf<8> rounded_pack(int64_t row, int64_t column) const {
    PackOf<8> pack = load_pack<8>(x + row * columns, column, columns);
    for (float& value : pack.v) value = static_cast<float>(f16(value));
    return pack;
  }
  /// The input that an outlier column multiplies; 0 if it has a code.
  __device__ float value(int64_t row, int64_t column) const {
    const int64_t at = row * columns + column;
    return by_row && !is_outlier(rounded(at), threshold) ? 0.0f : load(x + at);
  }
};

/// Eight columns of a block of rows; flags are zeros before.
template <class T>
struct FindOutliers {
  static constexpr int64_t rows_at_once = 64;
  Int8Inputs<T> in;
  __device__ void operator()(int64_t i) const {
    const int64_t packs = blocks_for(in.columns, 8), column = i % packs * 8, first = i / packs * rows_at_once;
    bool found[8] = {};
    for (int64_t row = first; row < std::min(in.rows, first + rows_at_once); ++row) {
      const PackOf<8> inputs = in.rounded_pack(row, column);
      LLMTRAIN_UNROLL
      for (int k = 0; k < 8; ++k) found[k] |= is_outlier(inputs.v[k], in.threshold);
    }
    LLMTRAIN_UNROLL
    for (int k = 0; k < 8; ++k) {
      if (found[k]) in.flags[column + k] = 1;
    }
  }
};

/// Each thread lists the outliers of consecutive columns, after those of the threads before it.
struct ListOutliers {
  static constexpr int threads = 1024, warps = threads / warp_lanes;
  const int32_t* flags;
  int32_t *outliers, *count;
  int64_t columns;
  __device__ void operator()() const {
    LLMTRAIN_SHARED(int32_t[warps], of_warps);
    const int64_t each = (columns + threads - 1) / threads, first = threadIdx.x * each;
    const int64_t end = std::min(columns, first + each);
    const int warp = static_cast<int>(threadIdx.x) / warp_lanes;
    int32_t own = 0;
    for (int64_t c = first; c < end; ++c) own += flags[c];
    int32_t until = own;  // outliers of the warp up to this thread's
    for (int distance = 1; distance < warp_lanes; distance *= 2) {
      const int32_t before = __shfl_sync(0xFFFFFFFFu, until, std::max(lane() - distance, 0));
      if (lane() >= distance) until += before;
    }
    if (lane() == warp_lanes - 1) of_warps[warp] = until;
    __syncthreads();
    for (int w = 0; w < warp; ++w) until += of_warps[w];
    if (threadIdx.x == threads - 1) *count = until;
    int32_t at = until - own;
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
    for (int64_t c = lane() * 8; c < in.columns; c += warp_lanes * 8) {
      const PackOf<8> inputs = in.rounded_pack(row, c);
      for (const float input : inputs.v) {
        const uint32_t bits = std::bit_cast<uint32_t>(input) & 0x7FFFFFFFu;
        if (!is_outlier(input, in.threshold) && bits > largest) largest = bits;
      }
    }
    largest = warp_maximum(largest);
    const auto scale = std::bit_cast<float>(largest);
    if (lane() == 0) in.scales[row] = scale;
    const float factor = int8_factor(scale);
    for (int64_t c = lane() * 8; c < in.columns; c += warp_lanes * 8) {
      const PackOf<8> inputs = in.rounded_pack(row, c);
      RawPack<int8_t, 8> codes;
      LLMTRAIN_UNROLL
      for (int k = 0; k < 8; ++k) {
        const bool by_input = in.by_row || in.threshold <= 0;
        const bool outlier =
            c + k < in.columns && !by_input ? in.flags[c + k] != 0 : is_outlier(inputs.v[k], in.threshold);
        codes.v[k] = static_cast<int8_t>(outlier ? 0 : int8_code(inputs.v[k], factor));
      }
      int8_t* to = in.codes + row * in.columns + c;
      if (c + 8 <= in.columns && is_aligned<8>(to)) {
        *reinterpret_cast<RawPack<int8_t, 8>*>(to) = codes;
      } else {
        LLMTRAIN_UNROLL
        for (int k = 0; k < 8; ++k) {
          if (c + k < in.columns) to[k] = codes.v[k];
        }
      }
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

/// Outputs of a block of rows from the sums of their products of codes, an element a thread; a block has one row.
template <class T, class Y, class B>
struct FinishOutputs {
  static constexpr int threads = 256;
  Int8Inputs<T> in;
  Int8Outputs<Y> out;
  const B* bias;
  AddedProduct<T> added;
  int64_t first;  ///< row
  bool summed;    ///< false: the sums are computed here, of shapes that the library does not take

  __device__ void operator()() const {
    const int64_t column = int64_t{blockIdx.x} * threads + threadIdx.x, row = first + blockIdx.y;
    if (column >= out.columns) return;
    int64_t sum = 0;
    if (summed) {
      sum = in.sums[blockIdx.y * out.columns + column];
    } else {
      const int8_t *codes = in.codes + row * in.columns, *weights = out.codes + column * in.columns;
      for (int64_t k = 0; k < in.columns; ++k) sum += codes[k] * weights[k];
    }
    finish(row, column, sum);
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

/// Rows whose sums are held at once: 32 MiB at most, so that they are read from the L2 cache.
constexpr int64_t summed_rows(int64_t rows, int64_t outputs) {
  return std::min({rows, max_grid_y, std::max<int64_t>(1, (int64_t{8} << 20) / outputs)});
}

constexpr int64_t aligned(int64_t bytes) { return (bytes + 15) / 16 * 16; }

template <class T>
Int8Inputs<T> quantized_inputs(const Tensor& x, int64_t outputs, float threshold, bool by_row, Stream& stream) {
  const int64_t rows = x.dim(0), columns = x.dim(1);
  auto* memory = static_cast<char*>(scratch(int8_scratch_bytes(rows, columns, outputs)));
  const auto take = [&]<class A>(A*, int64_t count) {
    auto* result = reinterpret_cast<A*>(memory);
    memory += aligned(count * static_cast<int64_t>(sizeof(A)));
    return result;
  };
  Int8Inputs<T> in{static_cast<const T*>(x.data), rows, columns, threshold, by_row};
  in.scales = take(in.scales, rows);
  in.flags = take(in.flags, columns);
  in.outliers = take(in.outliers, columns);
  in.count = take(in.count, 1);
  in.codes = take(in.codes, rows * columns);
  in.sums = take(in.sums, summed_rows(rows, outputs) * outputs);
  if (threshold > 0) {
    fill_zero(in.flags, columns * static_cast<int64_t>(sizeof(int32_t)), stream);
    for_each(blocks_for(columns, 8) * blocks_for(rows, FindOutliers<T>::rows_at_once), stream, FindOutliers<T>{in});
    launch({}, stream, ListOutliers{in.flags, in.outliers, in.count, columns});
  }
  for_each_warp(rows, stream, QuantizeRow<T>{in});
  return in;
}

}  // namespace

int64_t int8_scratch_bytes(int64_t rows, int64_t columns, int64_t outputs) {
  return aligned(rows * 4) + 2 * aligned(columns * 4) + aligned(4) + aligned(rows * columns) +
         aligned(summed_rows(rows, outputs) * outputs * 4);
}

void int8_forward(const Tensor& y, const Tensor& x, const WeightMatrix& w, const Tensor& bias, Stream& stream,
                  ProductRole role, const LowRank& added) {
  const QuantizedMatrix& matrix = w.quantized();
  const auto threshold = static_cast<float>(matrix.format.outlier_threshold);
  dispatch(y, x, [&]<class Y, class T>(Y* to, T*) {
    const Int8Inputs<T> in = quantized_inputs<T>(x, matrix.rows, threshold, role != ProductRole::training, stream);
    const auto run = [&]<class B>(B* shift) {
      for (int s = 0; s < matrix.count; ++s) {
        const QuantizedRows& slice = matrix.slices[static_cast<size_t>(s)];
        const Int8Outputs<Y> out{to + slice.first_row, y.dim(1), slice.rows,
                                 reinterpret_cast<const int8_t*>(slice.chunks) + slice.skipped * matrix.columns,
                                 slice.table + slice.skipped};
        AddedProduct<T> more{static_cast<const T*>(added.left.data), static_cast<const T*>(added.right.data),
                             added.rank()};
        if (!added.empty()) more.right += slice.first_row * more.rank;
        const int64_t at_a_time = summed_rows(in.rows, matrix.rows);
        for (int64_t first = 0; first < in.rows; first += at_a_time) {
          const int64_t rows = std::min(at_a_time, in.rows - first);
          const bool summed = multiply_codes(Tensor(in.sums, DType::i32, {rows, slice.rows}),
                                             in.codes + first * in.columns, out.codes, in.columns, stream);
          using Finish = FinishOutputs<T, Y, B>;
          launch({blocks_for(slice.rows, Finish::threads), rows}, stream,
                 Finish{in, out, shift == nullptr ? nullptr : shift + slice.first_row, more, first, summed});
        }
      }
    };
    bias.empty() ? run(static_cast<float*>(nullptr)) : dispatch(bias, run);
  });
}

}  // namespace llmtrain::cuda
