#pragma once
#include <functional>

#include "core/dtype.hpp"
#include "hf/weights/stored_slice.hpp"

namespace llmtrain {

/// Reads elements [begin, end) of the slice, counted row-major as in the model, as fp32. It reads no other bytes,
/// except gaps shorter than a page. Thread-safe. Returns the number of bytes read.
int64_t read_slice(const StoredSlice& slice, int64_t begin, int64_t end, float* out);
/// Gets values before they are rounded: elements of a row, counted from the first one that is read.
using ExamineValues = std::function<void(int64_t first, const float* values, int64_t count)>;
/// Reads a transposed slice as a compute type, rounded, with the memory of a few rows only.
int64_t read_transposed(const StoredSlice& slice, int64_t begin, int64_t end, DType type, void* out,
                        const ExamineValues& examine);

}  // namespace llmtrain
