#pragma once
// Tiles, grids and shared memory of attention kernels: plain arithmetic, tested on the host.

#include "kernels/cuda/launch_shape.hpp"

namespace llmtrain::cuda {

// For tensor cores, bf16 and fp16: attention_tiles.cuh.

inline constexpr int tile_rows = 64;       ///< rows per block: 16 per warp
inline constexpr int tile_threads = 128;   ///< threads per block
inline constexpr int other_rows = 32;      ///< rows of the other side per iteration of the backward pass
inline constexpr int64_t max_tiled = 128;  ///< head dimension

/// Number of columns of a head's tile.
constexpr int tile_columns(int64_t head_dim) {
  return head_dim <= 32 ? 32 : head_dim <= 64 ? 64 : head_dim <= 96 ? 96 : 128;
}
/// Rows of a tile have 16 extra bytes of padding, which avoids bank conflicts.
constexpr int tile_stride(int columns) { return columns + 8; }
constexpr int tile_bytes(int columns, int rows) { return rows * tile_stride(columns) * 2; }

// Tiles of the other side have two stages: one is read while the next one is loaded.
inline constexpr int stages = 2;

/// Forward: keys and values.
constexpr int tiled_shared_bytes(int columns) { return stages * 2 * tile_bytes(columns, tile_rows); }
/// For dq: first queries and gradients, then, in the same memory, keys and values.
constexpr int tiled_query_shared_bytes(int columns) { return 2 * tile_bytes(columns, stages * other_rows); }
/// For dk and dv: keys, values, then queries and gradients with their lse and delta.
constexpr int tiled_key_shared_bytes(int columns) {
  return 2 * tile_bytes(columns, tile_rows) + 2 * tile_bytes(columns, stages * other_rows) +
         2 * stages * other_rows * static_cast<int>(sizeof(float));
}
static_assert(stages * other_rows == tile_rows, "two stages lie in the place of a whole tile");
/// Sufficient for any batch, since each segment has at most one partial tile.
constexpr Grid tile_grid(int64_t tokens, int64_t segments, int64_t heads) {
  return {tokens / tile_rows + segments, heads};
}

// For any head dimension, in fp32: attention.cu.

inline constexpr int row_warps = 4;  ///< warps per block, one row each

/// Elements of a head's row per lane.
constexpr int row_registers(int64_t head_dim) {
  return head_dim <= 32 ? 1 : head_dim <= 64 ? 2 : head_dim <= 128 ? 4 : head_dim <= 256 ? 8 : 32;
}
/// Number of lanes, a power of 2, that share a head's row in packs of `size` elements.
constexpr int row_lanes(int64_t head_dim, int64_t size) {
  int lanes = 1;
  while (lanes < warp_lanes && lanes * size < head_dim) lanes *= 2;
  return lanes;
}
/// Floats of shared memory per warp: `rows` rows of the head and `weights` times 32 numbers.
constexpr int row_shared_floats(int64_t head_dim, int rows, int weights) {
  return rows * static_cast<int>(head_dim) + weights * warp_lanes;
}
constexpr int row_shared_bytes(int64_t head_dim, int rows, int weights) {
  return row_warps * row_shared_floats(head_dim, rows, weights) * static_cast<int>(sizeof(float));
}
constexpr Grid row_grid(int64_t rows, int64_t heads) { return {blocks_for(rows, row_warps), heads}; }

}  // namespace llmtrain::cuda
