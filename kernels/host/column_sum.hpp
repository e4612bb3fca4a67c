#pragma once
// Sums over the rows of a matrix in an order that depends only on its shape: blocks of 32 rows are summed in fp32, then
// the blocks are folded in order, in double.

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/host/parallel.hpp"

namespace llmtrain::host {

inline constexpr int64_t rows_per_block = 32;

struct ColumnSumShape {
  int64_t rows;
  int64_t columns;
  int results;              ///< number of result vectors of `columns` elements: 1 or 2
  bool whole_rows = false;  ///< add_rows needs all columns at once
};

/// Floats of scratch() for a sum over this many rows; columns of all results together.
constexpr int64_t column_sum_floats(int64_t rows, int64_t columns) {
  return std::max<int64_t>(1, (rows + rows_per_block - 1) / rows_per_block * columns);
}

/// out[i][c] = or += the sum over rows. add_rows(sums, begin, end, first, last) adds rows [begin, end) of columns
/// [first, last) to sums[c], and to sums[columns + c] if there are two results. Null results are dropped. Uses
/// scratch().
template <class AddRows>
void column_sums(const ColumnSumShape& shape, const AddRows& add_rows, std::array<float*, 2> out, bool accumulate) {
  const int64_t columns = shape.columns;
  const int64_t strip = shape.whole_rows ? columns : 256;  // columns per task
  const int64_t blocks = (shape.rows + rows_per_block - 1) / rows_per_block;
  const int64_t strips = (columns + strip - 1) / strip;
  const int64_t stride = columns * shape.results;
  float* partial = scratch(column_sum_floats(shape.rows, stride));
  parallel_for(blocks * strips, [&, partial](int64_t task) {
    const int64_t block = task / strips;
    const int64_t first = task % strips * strip;
    const int64_t last = std::min(columns, first + strip);
    float* sums = partial + block * stride;
    for (int r = 0; r < shape.results; ++r) std::fill(sums + r * columns + first, sums + r * columns + last, 0.0f);
    add_rows(sums, block * rows_per_block, std::min(shape.rows, (block + 1) * rows_per_block), first, last);
  });
  constexpr int64_t fold_width = 64;
  parallel_blocks(columns, fold_width, [&, partial](int64_t first, int64_t last) {
    for (int r = 0; r < shape.results; ++r) {
      float* result = out[static_cast<size_t>(r)];
      if (result == nullptr) continue;
      double sums[fold_width] = {};
      for (int64_t block = 0; block < blocks; ++block) {
        const float* from = partial + block * stride + r * columns;
        for (int64_t c = first; c < last; ++c) sums[c - first] += from[c];
      }
      for (int64_t c = first; c < last; ++c) {
        result[c] = accumulate ? static_cast<float>(result[c] + sums[c - first]) : static_cast<float>(sums[c - first]);
      }
    }
  });
}

}  // namespace llmtrain::host
