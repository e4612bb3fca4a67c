#include <algorithm>
#include <array>

#include "core/profile.hpp"
#include "kernels/block_codes.hpp"
#include "kernels/block_scale.hpp"
#include "kernels/cuda/dequantize.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/dynamic_map.hpp"

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

}  // namespace cuda

}  // namespace llmtrain
