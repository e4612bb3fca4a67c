#include <algorithm>
#include <array>

#include "core/profile.hpp"
#include "kernels/block_scale.hpp"
#include "kernels/cuda/dequantize.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/dynamic_map.hpp"
#include "kernels/quantize.hpp"

namespace llmtrain {

namespace {

using namespace cuda;

/// Values of the codes, in device memory.
struct CodeTables {
  const float* map;     ///< of doubly quantised scales
  const float* levels;  ///< of 4-bit weights
};

CodeTables tables_of(QuantizedType type, Stream& stream) {
  constexpr int64_t map_size = 256, levels = 16;
  static auto* memory = [&] {  // never destroyed: at exit the driver may be unloaded first
    std::array<float, map_size + 2 * levels> values{};
    std::copy(signed_dynamic_map.begin(), signed_dynamic_map.end(), values.begin());
    std::ranges::copy(levels_of(QuantizedType::nf4), values.begin() + map_size);
    std::ranges::copy(levels_of(QuantizedType::fp4), values.begin() + map_size + levels);
    auto* buffer = new DeviceBuffer(static_cast<int64_t>(sizeof values));
    copy_to_device(buffer->data(), values.data(), buffer->bytes(), stream);
    stream.synchronize();
    return buffer;
  }();
  const auto* map = static_cast<const float*>(memory->data());
  return {map, map + map_size + (type == QuantizedType::fp4 ? levels : 0)};
}

/// Elements of a slice from `first` on.
template <class T>
struct Dequantize {
  T* out;
  Quantization format;
  const uint8_t* chunks;
  const float* table;
  CodeTables tables;
  int64_t columns, first;
  __device__ void operator()(int64_t i) const {
    const int64_t e = first + i, at = e % chunk_elements;
    const uint8_t* record = chunks + e / chunk_elements * chunk_bytes(format);
    if (format.type == QuantizedType::int8) {
      const auto code = static_cast<float>(static_cast<int8_t>(record[at]));
      return store(out + i, rounded_product(code, table[e / columns]) * int8_step);
    }
    const int code = at % 2 == 0 ? record[at / 2] >> 4 : record[at / 2] & 15;
    const float scale = block_scale(format, record, at / format.block_size, table, e / format.block_size, tables.map);
    store(out + i, tables.levels[code] * scale);
  }
};

/// An output of up to `few_rows` rows at a time, by a warp: each lane takes eight inputs of every 256.
template <class T, class Y, class B>
struct DecodeFromCodes {
  static constexpr int few_rows = 4, width = 8;
  Y* y;
  const T* x;
  int64_t rows, stride;  ///< of y's rows
  Quantization format;
  const uint8_t* chunks;
  const float* table;
  CodeTables tables;
  int64_t columns, first;  ///< the slice's element that is the first one of output 0
  const B* bias;
  const T *left, *right;
  int64_t rank;

  __device__ float scale(int64_t e) const {
    const uint8_t* record = chunks + e / chunk_elements * chunk_bytes(format);
    return block_scale(format, record, e % chunk_elements / format.block_size, table, e / format.block_size,
                       tables.map);
  }
  __device__ int byte(int64_t e) const {
    return chunks[e / chunk_elements * chunk_bytes(format) + e % chunk_elements / 2];
  }
  /// Weight in the compute type.
  __device__ float weight(int code, float scale_of_block) const {
    T rounded;
    store(&rounded, tables.levels[code] * scale_of_block);
    return load(&rounded);
  }
  __device__ PackOf<width> weights(int64_t e, int64_t count) const {
    PackOf<width> w{};
    if (e % width == 0 && count == width) {  // in one block
      const float of_block = scale(e);
      LLMTRAIN_UNROLL
      for (int i = 0; i < width; i += 2) {
        const int codes = byte(e + i);
        w.v[i] = weight(codes >> 4, of_block);
        w.v[i + 1] = weight(codes & 15, of_block);
      }
      return w;
    }
    LLMTRAIN_UNROLL
    for (int i = 0; i < width; ++i) {
      if (i < count) w.v[i] = weight((e + i) % 2 == 0 ? byte(e + i) >> 4 : byte(e + i) & 15, scale(e + i));
    }
    return w;
  }

  __device__ void operator()(int64_t output) const {
    const int64_t from = first + output * columns;
    for (int64_t row = 0; row < rows; row += few_rows) {
      float sums[few_rows] = {};
      for (int64_t k = lane() * width; k < columns; k += warp_lanes * width) {
        const PackOf<width> w = weights(from + k, std::min<int64_t>(width, columns - k));
        LLMTRAIN_UNROLL
        for (int r = 0; r < few_rows; ++r) {
          if (row + r >= rows) continue;
          const PackOf<width> in = load_pack<width>(x + (row + r) * columns, k, columns);
          for (int i = 0; i < width; ++i) sums[r] = fmaf(in.v[i], w.v[i], sums[r]);
        }
      }
      LLMTRAIN_UNROLL
      for (int r = 0; r < few_rows; ++r) {
        if (row + r >= rows) continue;
        float more = 0;
        for (int64_t i = lane(); i < rank; i += warp_lanes) {
          more = fmaf(load(left + (row + r) * rank + i), load(right + output * rank + i), more);
        }
        const float sum = warp_sum(sums[r]) + warp_sum(more);
        if (lane() == 0) store(y + (row + r) * stride + output, sum + (bias == nullptr ? 0.0f : load(bias + output)));
      }
    }
  }
};

}  // namespace

void dequantize(const Tensor& out, const QuantizedMatrix& matrix, Stream& stream) {
  LLMTRAIN_CHECK(
      out.rank == 2 && out.dim(0) == matrix.rows && out.dim(1) == matrix.columns && is_compute_type(out.dtype),
      "a matrix is dequantised into one of its shape");
  const ProfileSpan span("dequantize", [&] { return traffic({&out}); });
  const CodeTables tables = tables_of(matrix.format.type, stream);
  dispatch(out, [&]<class T>(T* to) {
    for (int s = 0; s < matrix.count; ++s) {
      const QuantizedRows& slice = matrix.slices[static_cast<size_t>(s)];
      for_each(slice.rows * matrix.columns, stream,
               Dequantize<T>{to + slice.first_row * matrix.columns, matrix.format, slice.chunks, slice.table, tables,
                             matrix.columns, slice.skipped * matrix.columns});
    }
  });
}

namespace cuda {

Tensor dense_of(const WeightMatrix& matrix, Stream& stream) {
  if (!matrix.is_quantized()) return matrix.dense();
  Tensor out(nullptr, matrix.dtype(), {matrix.dim(0), matrix.dim(1)});
  out.data = scratch(out.bytes());
  dequantize(out, matrix.quantized(), stream);
  return out;
}

void decode_from_codes(const Tensor& y, const Tensor& x, const WeightMatrix& w, const Tensor& bias, Stream& stream,
                       const LowRank& added) {
  const QuantizedMatrix& matrix = w.quantized();
  const CodeTables tables = tables_of(matrix.format.type, stream);
  dispatch(y, x, [&]<class Y, class T>(Y* to, T* from) {
    const auto run = [&]<class B>(B* shift) {
      for (int s = 0; s < matrix.count; ++s) {
        const QuantizedRows& slice = matrix.slices[static_cast<size_t>(s)];
        const auto* right = static_cast<const T*>(added.right.data);
        for_each_warp(slice.rows, stream,
                      DecodeFromCodes<T, Y, B>{
                          to + slice.first_row, from, x.dim(0), y.dim(1), matrix.format, slice.chunks, slice.table,
                          tables, matrix.columns, slice.skipped * matrix.columns,
                          shift == nullptr ? nullptr : shift + slice.first_row, static_cast<const T*>(added.left.data),
                          right == nullptr ? nullptr : right + slice.first_row * added.rank(), added.rank()});
      }
    };
    bias.empty() ? run(static_cast<float*>(nullptr)) : dispatch(bias, run);
  });
}

}  // namespace cuda

}  // namespace llmtrain
