#pragma once
// Elements of stored tensors <-> fp32. To fp32 every conversion is exact; back it rounds to nearest, ties to even.

#include <cstdint>

#include "hf/safetensors.hpp"

namespace llmtrain {

/// Whether tensors of this type can be weights: F32, BF16, F16.
bool is_weight_type(StoredType type);

/// As config.json names it: float32, bfloat16, float16.
std::string_view dtype_name(StoredType type);

/// `count` elements from the bytes of a file (no alignment needed).
void to_float(StoredType type, const void* stored, int64_t count, float* out);
/// The same to memory that nobody reads soon: BF16 goes past the caches, which would read each line of `out` before it
/// is written.
void to_float_in_memory(StoredType type, const void* stored, int64_t count, float* out);
/// The other way; UserError(bad_content) with the element when a finite value does not fit F16.
void from_float(StoredType type, const float* values, int64_t count, void* stored);

}  // namespace llmtrain
