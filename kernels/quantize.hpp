#pragma once
// Quantised storage of matrices, as bitsandbytes has it: 4-bit codes with a scale a block (QLoRA, arXiv 2305.14314) and
// signed bytes with a scale a row (LLM.int8, arXiv 2208.07339). Functions on host memory, without threads.

#include <cstdint>
#include <span>
#include <vector>

#include "core/quantization.hpp"

namespace llmtrain {

/// Values of the sixteen codes of nf4 or fp4, in [-1, 1].
std::span<const float, 16> levels_of(QuantizedType type);

/// Blocks, and so scales, of `count` elements; the last one may be short.
constexpr int64_t blocks_of(int64_t count, int64_t block) { return (count + block - 1) / block; }

/// Quantises `count` elements to nf4 or fp4. The scale of a block is its largest magnitude; a code is that of the level
/// nearest to the element times 1 / scale, and of two equally near ones the smaller (nf4) or the one nearer to zero
/// (fp4): the decisions of bitsandbytes' CUDA kernels. A block of zeros has scale 0 and codes of zero. Scales under
/// 1e-38 count as 1e-38 in the division. A block with a NaN has the scale NaN, one with an infinity the scale infinity:
/// callers that refuse such weights need only look at the scales. An odd last element shares its byte with a code of
/// zero.
void quantize_blocks(QuantizedType type, int64_t block, const float* values, int64_t count, uint8_t* codes,
                     float* absmax);

/// values[i] = level of codes[i] * scale of its block, rounded to fp32.
void dequantize_blocks(QuantizedType type, int64_t block, const uint8_t* codes, const float* absmax, int64_t count,
                       float* values);

/// Scales of blocks in 8 bits (double quantisation): scale - offset in blocks of 256 with the signed dynamic map.
struct NestedScales {
  static constexpr int64_t block = 256;
  std::vector<uint8_t> codes;
  std::vector<float> absmax;  // a block of codes
  float offset = 0;           // mean of the scales
};
NestedScales quantize_scales(std::span<const float> absmax);

/// Scale number `index`: level of codes[index] * absmax[index / 256], rounded to fp32, plus `offset`.
float nested_scale(const uint8_t* codes, const float* absmax, float offset, int64_t index);

/// Quantises rows to signed bytes. Elements are rounded to fp16 first; a row's scale (SCB) is its largest magnitude, a
/// code round(element * (127 * (1 / scale))), ties to even. A row of zeros has scale 0 and codes 0.
void quantize_rows(const float* values, int64_t rows, int64_t columns, int8_t* codes, float* scales);

/// values[i] = codes[i] * scale of its row * (1 / 127), each product rounded to fp32.
void dequantize_rows(const int8_t* codes, const float* scales, int64_t rows, int64_t columns, float* values);

}  // namespace llmtrain
