#pragma once
// Tiles, grids and shared memory of attention's kernels: plain arithmetic, which tests hold on the host.

#include "kernels/cuda/launch_shape.hpp"

namespace llmtrain::cuda {

// On tensor cores, bf16 and fp16: attention_tiles.cuh.

inline constexpr int tile_rows = 64;       ///< of a block: 16 of each warp
inline constexpr int tile_threads = 128;   ///< of a block
inline constexpr int other_rows = 32;      ///< of the other side, at a time, in the backward pass
inline constexpr int64_t max_tiled = 128;  ///< head dimension

/// Columns of a head's tile.
constexpr int tile_columns(int64_t head_dim) {
  return head_dim <= 32 ? 32 : head_dim <= 64 ? 64 : head_dim <= 96 ? 96 : 128;
}
/// Rows of a tile are 16 bytes longer than their elements, which keeps banks apart.
constexpr int tile_stride(int columns) { return columns + 8; }
constexpr int tile_bytes(int columns, int rows) { return rows * tile_stride(columns) * 2; }

// Tiles of the other side have two stages: one is read while the next one comes.
inline constexpr int stages = 2;

/// Forward: keys and values.
constexpr int tiled_shared_bytes(int columns) { return stages * 2 * tile_bytes(columns, tile_rows); }
/// Of dq: first queries and gradients, then, in their place, keys and values.
constexpr int tiled_query_shared_bytes(int columns) { return 2 * tile_bytes(columns, stages * other_rows); }
/// Of dk and dv: keys, values, then queries and gradients with their lse and delta.
constexpr int tiled_key_shared_bytes(int columns) {
  return 2 * tile_bytes(columns, tile_rows) + 2 * tile_bytes(columns, stages * other_rows) +
         2 * stages * other_rows * static_cast<int>(sizeof(float));
}
static_assert(stages * other_rows == tile_rows, "two stages lie in the place of a whole tile");
/// Enough for any batch: a segment ends in one tile that is not full.
constexpr Grid tile_grid(int64_t tokens, int64_t segments, int64_t heads) {
  return {tokens / tile_rows + segments, heads};
}

// Any head dimension, in fp32: attention.cu.

inline constexpr int row_warps = 4;  ///< of a block, a row each

/// Elements of a head's row that a lane holds.
constexpr int row_registers(int64_t head_dim) {
  return head_dim <= 32 ? 1 : head_dim <= 64 ? 2 : head_dim <= 128 ? 4 : head_dim <= 256 ? 8 : 32;
}
/// Lanes, a power of 2, that have a head's row between them in packs of `size` elements.
constexpr int row_lanes(int64_t head_dim, int64_t size) {
  int lanes = 1;
  while (lanes < warp_lanes && lanes * size < head_dim) lanes *= 2;
  return lanes;
}
/// Floats of shared memory of a warp: `rows` rows of the head and `weights` times 32 numbers.
constexpr int row_shared_floats(int64_t head_dim, int rows, int weights) {
  return rows * static_cast<int>(head_dim) + weights * warp_lanes;
}
constexpr int row_shared_bytes(int64_t head_dim, int rows, int weights) {
  return row_warps * row_shared_floats(head_dim, rows, weights) * static_cast<int>(sizeof(float));
}
constexpr Grid row_grid(int64_t rows, int64_t heads) { return {blocks_for(rows, row_warps), heads}; }

}  // namespace llmtrain::cuda
