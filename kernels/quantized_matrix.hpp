#pragma once
// View of a frozen matrix that is stored in fewer bits (Dettmers et al. 2023, arXiv:2305.14314; 2022,
// arXiv:2208.07339), and of a weight of any storage.
//
// A chunk of 256 elements is a record of bytes: its codes (128 bytes of 4 bits, or 256 of 8), then a scale of each of
// its blocks: fp32, or with double quantisation a code of 8 bits. int8 has no scale in the chunk. A table of fp32
// belongs to each slice: with double quantisation the offset, then the scale of every 256 blocks; with int8 the scale
// of every row.

#include <array>
#include <cstdint>

#include "core/params.hpp"
#include "core/quantization.hpp"
#include "core/tensor.hpp"
#include "device/device.hpp"

namespace llmtrain {

/// Number of scales of blocks that one nested scale covers.
inline constexpr int64_t nested_block = 256;

/// Value of code 1 of int8 over the scale of its row, which is the value of code 127.
inline constexpr float int8_step = 7.874015718698502e-3f;

/// Bytes of a chunk's codes, of a scale, and of all of the chunk.
constexpr int64_t code_bytes(const Quantization& q) {
  return q.type == QuantizedType::int8 ? chunk_elements : chunk_elements / 2;
}
constexpr int64_t scale_bytes(const Quantization& q) { return q.double_quantization ? 1 : 4; }
constexpr int64_t scales_of_chunk(const Quantization& q) {
  return q.type == QuantizedType::int8 ? 0 : chunk_elements / q.block_size;
}
constexpr int64_t chunk_bytes(const Quantization& q) { return code_bytes(q) + scales_of_chunk(q) * scale_bytes(q); }

/// Number of blocks of a slice; the last one may be shorter.
constexpr int64_t blocks_of(const Quantization& q, int64_t elements) {
  return (elements + q.block_size - 1) / q.block_size;
}
/// Number of fp32 values in a slice's table.
constexpr int64_t table_values(const Quantization& q, int64_t rows, int64_t columns) {
  if (q.type == QuantizedType::int8) return rows;
  return q.double_quantization ? 1 + (blocks_of(q, rows * columns) + nested_block - 1) / nested_block : 0;
}

/// Rows [first_row, first_row + rows) of a quantised matrix; they begin in row `skipped` of a slice, to which the data
/// belong.
struct QuantizedRows {
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t skipped = 0;
  const uint8_t* chunks = nullptr;  ///< records of the slice, on the device
  const float* table = nullptr;     ///< on the device
};

struct QuantizedMatrix {
  static constexpr int max_slices = 3;  ///< queries, keys and values

  Quantization format;
  int64_t rows = 0;
  int64_t columns = 0;
  int count = 0;
  std::array<QuantizedRows, max_slices> slices{};

  /// The part of row `row` and the rows that follow it in one slice.
  const QuantizedRows& slice_of(int64_t row) const {
    int i = 0;
    while (row >= slices[static_cast<size_t>(i)].first_row + slices[static_cast<size_t>(i)].rows) ++i;
    return slices[static_cast<size_t>(i)];
  }
  /// Rows [first, first + number).
  QuantizedMatrix part(int64_t first, int64_t number) const;
  int64_t bytes() const { return rows * columns / chunk_elements * chunk_bytes(format); }
};

/// A weight [rows, columns] of a product in the compute dtype: dense, or stored in fewer bits and dequantised into this
/// dtype. The product is the same, bit for bit, as with the dequantised matrix.
class WeightMatrix {
 public:
  WeightMatrix(const Tensor& dense) : dense_(dense), dtype_(dense.dtype) {}  // NOLINT: stands for its tensor in calls
  WeightMatrix(const QuantizedMatrix& quantized, DType dtype) : quantized_(quantized), dtype_(dtype) {}

  bool is_quantized() const { return quantized_.count > 0; }
  const Tensor& dense() const {
    LLMTRAIN_CHECK(!is_quantized(), "a dense matrix is expected, not a quantised one");
    return dense_;
  }
  const QuantizedMatrix& quantized() const { return quantized_; }
  DType dtype() const { return dtype_; }
  int64_t dim(int i) const {
    if (!is_quantized()) return dense_.dim(i);
    return i == 0 ? quantized_.rows : quantized_.columns;
  }
  int64_t bytes() const { return is_quantized() ? quantized_.bytes() : dense_.bytes(); }
  WeightMatrix rows(int64_t first, int64_t count) const {
    if (is_quantized()) return {quantized_.part(first, count), dtype_};
    return dense_.rows(first, count);
  }

 private:
  Tensor dense_;
  QuantizedMatrix quantized_;
  DType dtype_;
};

/// Records of a slice from its chunk `first_chunk` on, and its table, in host memory.
struct StoredChunks {
  const uint8_t* records;
  int64_t first_chunk;
  const float* table;
  int64_t columns;
};
/// Writes elements [first, first + count) of a slice in fp32. On the host, without threads.
void dequantize_on_host(const Quantization& format, const StoredChunks& stored, int64_t first, int64_t count,
                        float* out);

/// out [rows, columns] = the matrix, each value rounded to out's compute dtype.
void dequantize(const Tensor& out, const QuantizedMatrix& matrix, Stream& stream);

}  // namespace llmtrain
