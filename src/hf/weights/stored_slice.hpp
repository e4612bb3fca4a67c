#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "core/dtype.hpp"
#include "core/files/file_handle.hpp"
#include "core/params.hpp"
#include "hf/weights/weight_index.hpp"

namespace llmtrain {

/// A product that is taken from a matrix as it is read: scale x B A, with A [rank, columns] and B [rows, rank] in fp32.
struct SubtractedProduct {
  WeightIndex::Tensor a, b;
  const FileHandle* file;
  double scale;
};

/// Slice of a parameter in a file: [rows, columns], or [columns, rows] when transposed or with strides. A quantised one
/// has the files of its other planes too; it is read dequantised. A block is [rows, columns] of a larger matrix.
struct StoredSlice {
  const WeightIndex::Tensor* tensor;
  const FileHandle* file;
  int64_t rows;
  int64_t columns;
  bool transposed;
  const FileHandle* scales = nullptr;
  const FileHandle* nested = nullptr;  ///< of a packed one: that of the zero points
  const FileHandle* group_of = nullptr;
  std::optional<TensorBlock> block = {};
  const SubtractedProduct* minus = nullptr;

  /// The place in the file's matrix.
  TensorBlock place() const { return block.value_or(TensorBlock{0, 0, rows, columns}); }
};

/// The slice of a tensor, file_of(number) being a file of its index. Quantised matrices are never stored transposed,
/// and packed ones always are.
template <class FileOf>
StoredSlice stored_slice(const WeightIndex::Tensor& tensor, const FileOf& file_of, int64_t rows, int64_t columns,
                         bool transposed, const std::optional<TensorBlock>& block = {}) {
  const bool by_columns = ((transposed || tensor.strides) && !tensor.quantized) || tensor.packed;
  StoredSlice slice{&tensor, &file_of(tensor.file), rows, columns, by_columns};
  if (tensor.quantized) {
    slice.scales = &file_of(tensor.quantized->scales.file);
    slice.nested = &file_of(tensor.quantized->nested.file);
  }
  if (tensor.mxfp4) slice.scales = &file_of(tensor.mxfp4->file);
  if (tensor.packed) {
    slice.scales = &file_of(tensor.packed->scales.file);
    slice.nested = &file_of(tensor.packed->zeros.file);
    if (tensor.packed->group_of) slice.group_of = &file_of(tensor.packed->group_of->file);
  }
  slice.block = block;
  return slice;
}

/// A tensor as its file has it, all of it.
template <class FileOf>
StoredSlice whole_tensor(const WeightIndex::Tensor& tensor, const FileOf& file_of) {
  const int64_t columns = tensor.shape.size() < 2 ? 1 : tensor.shape.back();
  return stored_slice(tensor, file_of, columns == 0 ? 0 : tensor.numel() / columns, columns, false);
}

/// Reads elements [begin, end) of the slice, counted row-major as in the model, as fp32, less the product that is taken
/// from them, which is formed in fp64. It reads no other bytes of the slice, except gaps shorter than a page.
/// Thread-safe. Returns the number of bytes read.
int64_t read_slice(const StoredSlice& slice, int64_t begin, int64_t end, float* out);
/// Gets values before they are rounded: elements of a row, counted from the first one that is read.
using ExamineValues = std::function<void(int64_t first, const float* values, int64_t count)>;
/// Reads a transposed slice as a compute type, rounded, with the memory of a few rows only.
int64_t read_transposed(const StoredSlice& slice, int64_t begin, int64_t end, DType type, void* out,
                        const ExamineValues& examine);

inline constexpr int64_t quantized_piece = int64_t{1} << 17;  ///< elements that are read at once: 512 KiB of fp32

/// Reads elements [begin, end) of a quantised tensor, dequantised and rounded to fp32. Returns the number of bytes
/// read.
int64_t read_dequantized(const StoredSlice& slice, int64_t begin, int64_t end, float* out);
/// Reads elements [begin, end) of a tensor in MXFP4 (OCP Microscaling Formats 1.0), dequantised exactly. Returns the
/// number of bytes read.
int64_t read_mxfp4(const StoredSlice& slice, int64_t begin, int64_t end, float* out);
/// Reads elements [begin, end) of a matrix in GPTQ's or AutoAWQ's layout, dequantised. Calls put(first, values, count)
/// for elements of a row, counted from `begin` on. Returns the number of bytes read. Throws UserError(bad_content) for
/// an input's group that is not there.
int64_t read_packed(const StoredSlice& slice, int64_t begin, int64_t end, const ExamineValues& put);
/// Reads the groups of inputs [first, last) of such a matrix, and checks them.
std::vector<int32_t> read_groups(const StoredSlice& slice, int64_t first, int64_t last);
/// Reads the scales of blocks [first, last) of a quantised tensor. Returns the number of bytes read.
int64_t read_stored_scales(const StoredSlice& slice, int64_t first, int64_t last, float* scales);

}  // namespace llmtrain
