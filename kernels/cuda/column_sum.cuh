#pragma once
// Sums over the rows of a matrix in an order that depends only on its shape, without atomics: blocks of 32 rows are
// summed in fp32, then groups of 32 blocks and at last the groups in order, in double.

#include "kernels/cuda/launch.cuh"

namespace llmtrain::cuda {

inline constexpr int64_t rows_per_block = 32;
inline constexpr int64_t blocks_per_group = 32;

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
    LLMTRAIN_UNROLL_BY(8)  // sums depend on each other, loads do not
    for (int64_t row = block * rows_per_block; row < end; ++row) f(row, column, sums);
    for (int r = 0; r < results; ++r) partial[(block * results + r) * columns + column] = sums[r];
  }
};

/// Sums of a group of blocks. There are enough threads to fill the whole GPU.
struct GroupColumnSums {
  int64_t blocks, width;  ///< results times columns
  const float* partial;
  double* grouped;  ///< [group][result][column]
  __device__ void operator()(int64_t i) const {
    const int64_t first = i / width * blocks_per_group, end = std::min(blocks, first + blocks_per_group);
    double sum = 0;
    LLMTRAIN_UNROLL_BY(8)
    for (int64_t block = first; block < end; ++block) sum += partial[block * width + i % width];
    grouped[i] = sum;
  }
};

/// out[result][column] = or += the sum of the groups; a null result is dropped.
template <int results>
struct FoldColumnSums {
  int64_t groups, columns;
  const double* grouped;
  float* out[results];
  bool accumulate;
  __device__ void operator()(int64_t i) const {
    float* to = nullptr;
    LLMTRAIN_UNROLL  // a dynamically indexed array would lie in local memory
        for (int r = 0; r < results; ++r) {
      if (i / columns == r && out[r] != nullptr) to = out[r] + i % columns;
    }
    if (to == nullptr) return;
    double sum = 0;
    LLMTRAIN_UNROLL_BY(8)
    for (int64_t group = 0; group < groups; ++group) sum += grouped[group * results * columns + i];
    *to = static_cast<float>(accumulate ? *to + sum : sum);
  }
};

constexpr int64_t groups_of_rows(int64_t rows) {
  return blocks_for(blocks_for(rows, rows_per_block), blocks_per_group);
}
/// Number of floats for this many columns, those of all results together.
constexpr int64_t column_sum_bytes(int64_t rows, int64_t width) {
  return width * (groups_of_rows(rows) * static_cast<int64_t>(sizeof(double)) +
                  blocks_for(rows, rows_per_block) * static_cast<int64_t>(sizeof(float)));
}

/// Destination of the sums of blocks, [block][result][column].
inline float* partial_column_sums(void* memory, int64_t rows, int64_t width) {
  return reinterpret_cast<float*>(static_cast<double*>(memory) + groups_of_rows(rows) * width);
}
/// Reduces the block sums, once they are complete.
template <int results>
void fold_column_sums(void* memory, int64_t rows, int64_t columns, float* const (&out)[results], bool accumulate,
                      Stream& stream) {
  const int64_t blocks = blocks_for(rows, rows_per_block), groups = groups_of_rows(rows), width = results * columns;
  auto* grouped = static_cast<double*>(memory);
  for_each(groups * width, stream, GroupColumnSums{blocks, width, partial_column_sums(memory, rows, width), grouped});
  FoldColumnSums<results> fold{groups, columns, grouped, {}, accumulate};
  std::copy(out, out + results, fold.out);
  for_each(width, stream, fold);
}

template <int results, class F>
void column_sums(void* memory, int64_t rows, int64_t columns, float* const (&out)[results], bool accumulate,
                 Stream& stream, const F& f) {
  float* partial = partial_column_sums(memory, rows, results * columns);
  for_each(blocks_for(rows, rows_per_block) * columns, stream,
           PartialColumnSums<results, F>{rows, columns, partial, f});
  fold_column_sums(memory, rows, columns, out, accumulate, stream);
}
/// Uses scratch().
template <int results, class F>
void column_sums(int64_t rows, int64_t columns, float* const (&out)[results], bool accumulate, Stream& stream,
                 const F& f) {
  column_sums(scratch(column_sum_bytes(rows, results * columns)), rows, columns, out, accumulate, stream, f);
}

}  // namespace llmtrain::cuda
