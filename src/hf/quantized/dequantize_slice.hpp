#pragma once
#include "hf/weights/stored_slice.hpp"

namespace llmtrain {

inline constexpr int64_t quantized_piece = int64_t{1} << 17;  ///< elements that are read at once: 512 KiB of fp32

/// Reads elements [begin, end) of a quantised tensor, dequantised and rounded to fp32. Returns the number of bytes
/// read.
int64_t read_dequantized(const StoredSlice& slice, int64_t begin, int64_t end, float* out);
/// Reads the scales of blocks [first, last) of a quantised tensor. Returns the number of bytes read.
int64_t read_stored_scales(const StoredSlice& slice, int64_t first, int64_t last, float* scales);

}  // namespace llmtrain
