#pragma once
// Sums over the rows of a matrix in an order that depends on its shape alone, and without atomics: blocks of 32 rows
// are summed in fp32, then the blocks in order, in double.

#include "kernels/cuda/launch.cuh"

namespace llmtrain::cuda {

inline constexpr int64_t rows_per_block = 32;

/// Sums of f(row, column, sums) over a block of rows, to partial[block][result][column]; f adds to sums[result].
template <int results, class F>
struct PartialColumnSums {
  int64_t rows, columns;
  float* partial;
  F f;
  __device__ void operator()(int64_t i) const {
    const int64_t block = i / columns, column = i % columns;
    float sums[results] = {};
    const int64_t end = std::min(rows, (block + 1) * rows_per_block);
    for (int64_t row = block * rows_per_block; row < end; ++row) f(row, column, sums);
    for (int r = 0; r < results; ++r) partial[(block * results + r) * columns + column] = sums[r];
  }
};

/// out[result][column] = or += the sum of the blocks; a null result is dropped.
template <int results>
struct FoldColumnSums {
  int64_t blocks, columns;
  const float* partial;
  float* out[results];
  bool accumulate;
  __device__ void operator()(int64_t column) const {
    for (int r = 0; r < results; ++r) {
      if (out[r] == nullptr) continue;
      double sum = 0;
      for (int64_t block = 0; block < blocks; ++block) sum += partial[(block * results + r) * columns + column];
      out[r][column] = static_cast<float>(accumulate ? out[r][column] + sum : sum);
    }
  }
};

/// Uses scratch().
template <int results, class F>
void column_sums(int64_t rows, int64_t columns, float* const (&out)[results], bool accumulate, Stream& stream,
                 const F& f) {
  const int64_t blocks = (rows + rows_per_block - 1) / rows_per_block;
  auto* partial = static_cast<float*>(scratch(blocks * results * columns * static_cast<int64_t>(sizeof(float))));
  for_each(blocks * columns, stream, PartialColumnSums<results, F>{rows, columns, partial, f});
  FoldColumnSums<results> fold{blocks, columns, partial, {}, accumulate};
  std::copy(out, out + results, fold.out);
  for_each(columns, stream, fold);
}

}  // namespace llmtrain::cuda
