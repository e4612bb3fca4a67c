#pragma once
#include "core/files/file_handle.hpp"
#include "hf/weights/weight_index.hpp"

namespace llmtrain {

/// Slice of a parameter in a file: [rows, columns], or [columns, rows] when transposed. A quantised one has the files
/// of its other planes too; it is read dequantised.
struct StoredSlice {
  const WeightIndex::Tensor* tensor;
  const FileHandle* file;
  int64_t rows;
  int64_t columns;
  bool transposed;
  const FileHandle* scales = nullptr;
  const FileHandle* nested = nullptr;
};

/// The slice of a tensor, file_of(number) being a file of its index. Quantised matrices are never stored transposed.
template <class FileOf>
StoredSlice stored_slice(const WeightIndex::Tensor& tensor, const FileOf& file_of, int64_t rows, int64_t columns,
                         bool transposed) {
  StoredSlice slice{&tensor, &file_of(tensor.file), rows, columns, transposed && !tensor.quantized};
  if (tensor.quantized) {
    slice.scales = &file_of(tensor.quantized->scales.file);
    slice.nested = &file_of(tensor.quantized->nested.file);
  }
  return slice;
}

/// A tensor as its file has it, all of it.
template <class FileOf>
StoredSlice whole_tensor(const WeightIndex::Tensor& tensor, const FileOf& file_of) {
  const int64_t columns = tensor.shape.empty() ? 1 : tensor.shape.back();
  return stored_slice(tensor, file_of, columns == 0 ? 0 : tensor.numel() / columns, columns, false);
}

}  // namespace llmtrain
