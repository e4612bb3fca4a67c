#pragma once
// Arithmetic of LLM.int8 (Dettmers et al. 2022, arXiv:2208.07339) as bitsandbytes has it, the same on every device.
//
// Inputs are rounded to fp16. Those whose magnitude is at least the threshold are outliers; their columns are
// multiplied in the compute type with the dequantised weights. The others of a row are quantised by their largest
// magnitude; sums of products of codes are exact integers.

#include <cmath>
#include <cstdint>

#include "core/dtype.hpp"
#include "core/host_device.hpp"
#include "kernels/rounded_product.hpp"

namespace llmtrain {

/// Values of code 1 of both operands over their scales.
inline constexpr float int8_product_step = 6.200124e-05f;

/// Largest number of products of codes whose sum is kept in 32 bits.
inline constexpr int64_t int8_sum_length = 1024;

/// Input that has been rounded to fp16; a threshold of 0 is none.
LLMTRAIN_HOST_DEVICE inline bool is_outlier(float input, float threshold) {
  return threshold > 0 && (input < 0 ? -input : input) >= threshold;
}

/// Factor of a row's elements; a row of zeros has codes of zero. PyTorch, which bitsandbytes calls on a processor,
/// multiplies by the inverse, too: where a scale is a multiple of 127, many quotients are halves, and the last place of
/// the factor decides their codes.
LLMTRAIN_HOST_DEVICE inline float int8_factor(float scale) {
  return scale == 0 ? 0.0f : rounded_product(127.0f, 1.0f / scale);
}

/// Code of an input that has been rounded to fp16; 0 where it or the row's scale is not finite.
LLMTRAIN_HOST_DEVICE inline int int8_code(float input, float factor) {
  const float code = rintf(input * factor);
  return code >= -127.0f && code <= 127.0f ? static_cast<int>(code) : 0;
}

LLMTRAIN_HOST_DEVICE inline float int8_product(int64_t sum, float input_scale, float weight_scale) {
  return rounded_product(rounded_product(static_cast<float>(sum), rounded_product(input_scale, weight_scale)),
                         int8_product_step);
}

}  // namespace llmtrain
