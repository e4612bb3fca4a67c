#pragma once
// What a launch may ask for: plain arithmetic, which tests hold on the host.

#include <algorithm>
#include <cstdint>

#include "core/error.hpp"

namespace llmtrain::cuda {

inline constexpr int warp_lanes = 32;

struct Grid {
  int64_t x = 1, y = 1, z = 1;
};
// CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
inline constexpr int64_t max_grid_x = 2147483647;
inline constexpr int64_t max_grid_y = 65535;           ///< and z
inline constexpr int shared_bytes_granted = 48 << 10;  ///< of dynamic shared memory, without asking
inline constexpr int64_t registers_of_block = 65536;

/// Shared memory that a block can get by asking, in bytes; capability 90 is 9.0.
constexpr int64_t shared_bytes_of_block(int capability) {
  switch (capability) {
    case 80:
    case 87:
      return 163 << 10;
    case 90:
    case 100:
    case 103:
      return 227 << 10;
    default:
      return 99 << 10;  // the chips for graphics
  }
}

constexpr int64_t blocks_for(int64_t items, int64_t per_block) { return (items + per_block - 1) / per_block; }

/// Blocks of a loop over items, whose threads go on by the whole grid.
inline constexpr int64_t max_loop_grid = 1 << 16;
constexpr Grid loop_grid(int64_t items, int64_t per_block) {
  return {std::min(max_loop_grid, blocks_for(items, per_block))};
}

constexpr bool is_empty(const Grid& g) { return g.x == 0 || g.y == 0 || g.z == 0; }
inline void check_grid(const Grid& g) {
  LLMTRAIN_CHECK(g.x >= 0 && g.y >= 0 && g.z >= 0 && g.x <= max_grid_x && g.y <= max_grid_y && g.z <= max_grid_y,
                 "a kernel wants more blocks than a grid can have: take a smaller micro-batch");
}

}  // namespace llmtrain::cuda
