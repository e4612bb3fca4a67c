#pragma once
// Tiles of products of several matrices, and which matrices have them: plain arithmetic, tested on the host.

#include "kernels/cuda/attention_shape.hpp"

namespace llmtrain::cuda {

inline constexpr int product_side = 128;     ///< rows and columns of a block's tile
inline constexpr int product_depth = 64;     ///< elements along the inner dimension that are held at once
inline constexpr int product_threads = 256;  ///< a warp has 32 rows and 64 columns
inline constexpr int most_products = 64;     ///< in a launch, whose arguments have 4 KiB

/// Elements of an operand's tile, whichever of its dimensions lies along the rows.
inline constexpr int operand_elements =
    std::max(product_side * tile_stride(product_depth), product_depth* tile_stride(product_side));
/// Two stages of both operands.
inline constexpr int product_shared_bytes = stages * 2 * operand_elements * 2;

/// True if products of matrices [outputs, inputs], bf16 or fp16, are computed together: one of few rows would leave
/// multiprocessors idle (benchmarks/results/gpu.md).
constexpr bool multiplies_together(int64_t outputs, int64_t inputs) { return std::max(outputs, inputs) <= 3072; }

}  // namespace llmtrain::cuda
