#pragma once
// Converts elements of stored tensors to and from fp32: exactly to fp32, rounded to nearest, ties to even, from fp32.

#include <cstdint>

#include "hf/weights/safetensors.hpp"

namespace llmtrain {

/// Returns true if tensors of this type can be weights: F32, BF16, F16.
bool is_weight_type(StoredType type);

/// Returns the name in config.json: float32, bfloat16, float16.
std::string_view dtype_name(StoredType type);

/// Converts `count` elements from the bytes of a file (no alignment needed).
void to_float(StoredType type, const void* stored, int64_t count, float* out);
/// Converts to memory that is not read soon: BF16 bypasses the caches, which would read each line of `out` before it is
/// written.
void to_float_in_memory(StoredType type, const void* stored, int64_t count, float* out);
/// Converts from fp32; throws UserError(bad_content) with the element if a finite value does not fit F16.
void from_float(StoredType type, const float* values, int64_t count, void* stored);

}  // namespace llmtrain
