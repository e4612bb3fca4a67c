#pragma once
#include "core/files/file_handle.hpp"
#include "hf/weight_index.hpp"

namespace llmtrain {

/// A slice of a parameter as it lies in a file: [rows, columns], or [columns, rows] when transposed.
struct StoredSlice {
  const WeightIndex::Tensor* tensor;
  const FileHandle* file;
  int64_t rows;
  int64_t columns;
  bool transposed;
};

/// Elements [begin, end) of the slice, counted row-major as the model holds it, as fp32. Reads no bytes but theirs,
/// unless the gaps between them are shorter than a page. Safe for threads. Returns the bytes read.
int64_t read_slice(const StoredSlice& slice, int64_t begin, int64_t end, float* out);

}  // namespace llmtrain
