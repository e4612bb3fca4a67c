#pragma once
// Tiles, grids and shared memory of attention kernels: plain arithmetic, tested on the host.

#include "kernels/cuda/launch_shape.hpp"

namespace llmtrain::cuda {

// For tensor cores, bf16 and fp16: attention_tiles.cuh.

inline constexpr int tile_rows = 64;       ///< rows per block: 16 per warp
inline constexpr int tile_threads = 128;   ///< threads per block
inline constexpr int64_t max_tiled = 256;  ///< head dimension

/// Number of columns of a head's tile.
constexpr int tile_columns(int64_t head_dim) {
  return head_dim <= 32 ? 32 : head_dim <= 64 ? 64 : head_dim <= 96 ? 96 : head_dim <= 128 ? 128 : 256;
}
/// A thread's registers hold fewer numbers beside the sums of a wide tile, and shared memory fewer rows.
constexpr bool is_wide(int columns) { return columns > 128; }
/// Keys per iteration of the forward pass.
constexpr int key_rows(int columns) { return is_wide(columns) ? 32 : 64; }
/// Rows of the other side per iteration of the backward pass.
constexpr int other_rows(int columns) { return is_wide(columns) ? 16 : 32; }
/// Rows of a tile have 16 extra bytes of padding, which avoids bank conflicts.
constexpr int tile_stride(int columns) { return columns + 8; }
constexpr int tile_bytes(int columns, int rows) { return rows * tile_stride(columns) * 2; }

// Tiles of the other side have two stages: one is read while the next one is loaded.
inline constexpr int stages = 2;

/// Forward: keys and values; first, the queries lie in the place of the second stage.
constexpr int tiled_shared_bytes(int columns) { return stages * 2 * tile_bytes(columns, key_rows(columns)); }
/// For dk and dv: keys, values, then queries and gradients; lse and delta lie in the padding of the queries' rows.
constexpr int tiled_key_shared_bytes(int columns) {
  return 2 * tile_bytes(columns, tile_rows) + 2 * tile_bytes(columns, stages * other_rows(columns));
}
/// For dq: queries and gradients, then keys and values. Queries and gradients that are not wide go to registers, and
/// keys and values take their place.
constexpr int tiled_query_shared_bytes(int columns) {
  return is_wide(columns) ? tiled_key_shared_bytes(columns) : 2 * tile_bytes(columns, stages * other_rows(columns));
}
static_assert(2 * key_rows(256) == tile_rows && stages * other_rows(128) == tile_rows);
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
