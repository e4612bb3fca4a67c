#include <algorithm>
#include <array>
#include <bit>

#include "core/profile.hpp"
#include "kernels/cuda/dequantize.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/dynamic_map.hpp"
#include "kernels/quantize.hpp"
#include "kernels/rounded_product.hpp"

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

/// Four bytes, in one load where they are aligned.
__device__ inline uint32_t word_at(const uint8_t* at) {
  if (reinterpret_cast<uintptr_t>(at) % sizeof(uint32_t) == 0) return *reinterpret_cast<const uint32_t*>(at);
  return at[0] | uint32_t{at[1]} << 8 | uint32_t{at[2]} << 16 | uint32_t{at[3]} << 24;
}

constexpr int pack_size = 8;  ///< elements of a thread; they begin at a multiple of this in their slice

/// Codes of 4 bits of a slice. A pack lies in one block.
struct BlockCodes {
  const uint8_t* chunks;
  const float* table;
  CodeTables tables;
  int64_t record;   ///< bytes of a chunk
  int block_shift;  ///< base-2 logarithm of a block's elements
  bool nested;

  BlockCodes(const Quantization& format, const QuantizedRows& slice, const CodeTables& code_tables)
      : chunks(slice.chunks),
        table(slice.table),
        tables(code_tables),
        record(chunk_bytes(format)),
        block_shift(std::countr_zero(static_cast<uint64_t>(format.block_size))),
        nested(format.double_quantization) {}

  /// Codes of the pack of element e; that of its element i is in the four bits from 4 (i ^ 1) on.
  __device__ uint32_t pack(int64_t e) const {
    return word_at(chunks + (e >> 8) * record + (e & (chunk_elements - pack_size)) / 2);
  }
  __device__ static int code(uint32_t pack, int i) { return static_cast<int>(pack >> 4 * (i ^ 1) & 15); }
  /// Scale of the block of element e: an fp32 of the record, or a code of the second quantisation.
  __device__ float scale(int64_t e) const {
    const int64_t block = e >> block_shift, i = (e & (chunk_elements - 1)) >> block_shift;
    const uint8_t* scales = chunks + (e >> 8) * record + chunk_elements / 2;
    if (!nested) return std::bit_cast<float>(word_at(scales + 4 * i));
    return rounded_product(tables.map[scales[i]], table[1 + block / nested_block]) + table[0];
  }
  /// The level that a lane holds for its warp: a register of lane c has that of code c.
  __device__ float held_level() const { return tables.levels[lane() % 16]; }
};

/// Stores a pack whose first element is e, those in [first, end), to `out`, where element `first` comes first.
template <class T>
__device__ void store_inside(T* out, int64_t e, int64_t first, int64_t end, const PackOf<pack_size>& pack) {
  T* to = out + (e - first);
  if (e >= first && e + pack_size <= end && is_aligned<pack_size>(to)) return store_whole(to, pack);
  const auto from = static_cast<int>(std::max<int64_t>(first - e, 0));
  const auto until = static_cast<int>(std::min<int64_t>(end - e, pack_size));
  LLMTRAIN_UNROLL
  for (int i = 0; i < pack_size; ++i) {
    if (i >= from && i < until) store(to + i, pack.v[i]);
  }
}

/// Elements [first, end) of a slice, a chunk by a warp.
template <class T>
struct DequantizeBlocks {
  T* out;
  BlockCodes codes;
  int64_t first, end;
  __device__ void operator()(int64_t chunk) const {
    const int64_t e = (first / chunk_elements + chunk) * chunk_elements + lane() * pack_size;
    const uint32_t pack = codes.pack(e);  // a record is whole, also past the slice's end
    const float scale = codes.scale(e), level = codes.held_level();
    PackOf<pack_size> values;
    LLMTRAIN_UNROLL
    for (int i = 0; i < pack_size; ++i) {
      values.v[i] = __shfl_sync(0xFFFFFFFFu, level, BlockCodes::code(pack, i)) * scale;
    }
    store_inside(out, e, first, end, values);
  }
};

/// The same of a matrix of int8; `scales` has one of each row.
template <class T>
struct DequantizeBytes {
  T* out;
  const uint8_t* codes;
  const float* scales;
  int64_t columns, first, end;
  __device__ void operator()(int64_t chunk) const {
    const int64_t e = (first / chunk_elements + chunk) * chunk_elements + lane() * pack_size;
    if (e >= end) return;
    int64_t row = e / columns, column = e % columns;
    const uint32_t words[2] = {word_at(codes + e), word_at(codes + e + 4)};
    PackOf<pack_size> values;
    LLMTRAIN_UNROLL
    for (int i = 0; i < pack_size; ++i) {
      const auto code = static_cast<float>(static_cast<int8_t>(words[i / 4] >> 8 * (i % 4)));
      values.v[i] = rounded_product(code, scales[row]) * int8_step;
      if (++column == columns && e + i + 1 < end) ++row, column = 0;
    }
    store_inside(out, e, first, end, values);
  }
};

/// An output of up to `few_rows` rows at a time, by a warp: each lane takes a pack of every 256 inputs.
template <class T, class Y, class B>
struct DecodeFromCodes {
  static constexpr int few_rows = 4;
  Y* y;
  const T* x;
  int64_t rows, stride;  ///< of y's rows
  BlockCodes codes;
  int64_t columns, first;  ///< the slice's element that is the first one of output 0
  const B* bias;
  const T *left, *right;
  int64_t rank;

  /// `count` weights in the compute type from element e on, then zeros. Called by all lanes, with the same e modulo 8.
  __device__ PackOf<pack_size> weights(int64_t e, int64_t count, float level) const {
    const bool whole = e % pack_size == 0;
    const uint32_t pack = codes.pack(e);
    const float of_block = codes.scale(e);
    PackOf<pack_size> w{};
    LLMTRAIN_UNROLL
    for (int i = 0; i < pack_size; ++i) {
      float value = __shfl_sync(0xFFFFFFFFu, level, BlockCodes::code(pack, i)) * of_block;
      if (!whole && i < count) {
        const int64_t at = e + i;
        value =
            codes.tables.levels[BlockCodes::code(codes.pack(at), static_cast<int>(at % pack_size))] * codes.scale(at);
      }
      T rounded;
      store(&rounded, value);
      if (i < count) w.v[i] = load(&rounded);
    }
    return w;
  }

  __device__ void operator()(int64_t output) const {
    const int64_t from = first + output * columns;
    const float level = codes.held_level();
    for (int64_t row = 0; row < rows; row += few_rows) {
      float sums[few_rows] = {};
      for (int64_t of_warp = 0; of_warp < columns; of_warp += chunk_elements) {
        const int64_t k = of_warp + lane() * pack_size;
        const PackOf<pack_size> w = weights(from + (k < columns ? k : 0), columns - k, level);
        if (k >= columns) continue;  // its code and scale exist
        LLMTRAIN_UNROLL
        for (int r = 0; r < few_rows; ++r) {
          if (row + r >= rows) continue;
          const PackOf<pack_size> in = load_pack<pack_size>(x + (row + r) * columns, k, columns);
          for (int i = 0; i < pack_size; ++i) sums[r] = fmaf(in.v[i], w.v[i], sums[r]);
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
      T* out_of_slice = to + slice.first_row * matrix.columns;
      const int64_t first = slice.skipped * matrix.columns, end = first + slice.rows * matrix.columns;
      const int64_t chunks = blocks_for(end, chunk_elements) - first / chunk_elements;
      if (matrix.format.type == QuantizedType::int8) {
        for_each_warp(chunks, stream,
                      DequantizeBytes<T>{out_of_slice, slice.chunks, slice.table, matrix.columns, first, end});
      } else {
        for_each_warp(chunks, stream,
                      DequantizeBlocks<T>{out_of_slice, BlockCodes(matrix.format, slice, tables), first, end});
      }
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
                          to + slice.first_row, from, x.dim(0), y.dim(1), BlockCodes(matrix.format, slice, tables),
                          matrix.columns, slice.skipped * matrix.columns,
                          shift == nullptr ? nullptr : shift + slice.first_row, static_cast<const T*>(added.left.data),
                          right == nullptr ? nullptr : right + slice.first_row * added.rank(), added.rank()});
      }
    };
    bias.empty() ? run(static_cast<float*>(nullptr)) : dispatch(bias, run);
  });
}

}  // namespace cuda

}  // namespace llmtrain
