#pragma once
// Scale of a block of a quantised matrix on processors; GPUs compute the same in kernels/cuda/dequantize.cu.

#include <cstdint>
#include <cstring>

#include "core/host_device.hpp"
#include "kernels/quantized_matrix.hpp"
#include "kernels/rounded_product.hpp"

namespace llmtrain {

/// Scale of a block that is scale `i` of a chunk's record and block `block` of its slice. `map`: signed dynamic map.
LLMTRAIN_HOST_DEVICE inline float block_scale(const Quantization& q, const uint8_t* record, int64_t i,
                                              const float* table, int64_t block, const float* map) {
  const uint8_t* at = record + code_bytes(q) + i * scale_bytes(q);
  if (q.double_quantization) return rounded_product(map[*at], table[1 + block / nested_block]) + table[0];
  float scale = 0;
  memcpy(&scale, at, sizeof scale);
  return scale;
}

}  // namespace llmtrain
