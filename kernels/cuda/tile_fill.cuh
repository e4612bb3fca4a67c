#pragma once
// Loads of tiles from global to shared memory.

#include "kernels/cuda/copy_async.cuh"
#include "kernels/cuda/mma.cuh"

namespace llmtrain::cuda {

/// A matrix in global memory from which tiles are loaded: in attention the rows of one head in a segment.
template <class H>
struct TileRows {
  const H* data;      ///< of the first row
  int stride;         ///< elements to the next row
  int rows, columns;  ///< number of rows and elements

  /// True if all groups of eight elements are aligned to 16 bytes.
  __device__ bool in_packs() const {
    return columns % 8 == 0 && stride % 8 == 0 && reinterpret_cast<uintptr_t>(data) % sizeof(uint4) == 0;
  }
};

/// Starts to load rows [first, first + count) of a matrix into a tile, zeros beyond its rows and columns; they have
/// arrived after wait_for_copies() and __syncthreads(). Each of a block's `threads` loads packs of eight elements at
/// fixed distances.
template <int count, int threads = tile_threads, int columns, class H>
__device__ void fill_tile(const Tile<columns, H>& tile, const TileRows<H>& matrix, int first) {
  constexpr int packs = columns / 8, across = packs & -packs, down = threads / across;  // powers of two
  static_assert(count % down == 0);
  const int r = static_cast<int>(threadIdx.x) / across, c = static_cast<int>(threadIdx.x) % across * 8;
  const int rows = matrix.rows - first - r;  // remaining rows from the thread's first one on
  const H* from = matrix.data + int64_t{first + r} * matrix.stride + c;
  const Tile<columns, H> to{tile.row(r) + c};
  if (matrix.in_packs()) {
    LLMTRAIN_UNROLL
    for (int column = 0; column < columns; column += 8 * across) {
      const int wanted = c + column < matrix.columns ? rows : 0;
      const H* row = from + column;
      LLMTRAIN_UNROLL
      for (int i = 0; i < count; i += down, row += down * matrix.stride) {
        copy_async<sizeof(uint4)>(to.row(i) + column, row, i < wanted);
      }
    }
    return;
  }
  LLMTRAIN_UNROLL_BY(1)
  for (int column = 0; column < columns; column += 8 * across) {
    LLMTRAIN_UNROLL_BY(1)
    for (int i = 0; i < count; i += down) {
      H part[8] = {};
      LLMTRAIN_UNROLL
      for (int k = 0; k < 8; ++k) {
        if (i < rows && c + column + k < matrix.columns) part[k] = from[int64_t{i} * matrix.stride + column + k];
      }
      memcpy(to.row(i) + column, part, sizeof part);
    }
  }
}

}  // namespace llmtrain::cuda
