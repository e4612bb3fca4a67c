#pragma once
// Slices as parts of their external tensors (TensorBlock). Pure arithmetic.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/params.hpp"

namespace llmtrain {

/// The part of its external tensor that a slice is: of a slice without block, all of it.
inline TensorBlock block_of(const ParamSpec& param, const ParamSlice& slice) {
  return slice.block.value_or(TensorBlock{0, 0, slice.rows, param.columns});
}

/// Number of blocks of split matrices, or of experts (UnitSpec), that the units of a whole model have: 1 if nothing is
/// split.
inline int64_t count_blocks(const std::vector<UnitSpec>& units, int64_t UnitSpec::*block) {
  int64_t last = 0;
  for (const UnitSpec& unit : units) last = std::max(last, unit.*block);
  return last + 1;
}

/// Elements [begin, end) of a slice, which are consecutive in its external tensor too (before ParamSlice::transposed),
/// from `first` on.
struct ExternalRun {
  int64_t begin, end, first;
};

/// Calls f(run) for the runs that elements [begin, end) of a slice of `columns` columns consist of, in order: one if
/// the slice has whole rows of its tensor, else one for each row.
template <class F>
void each_external_run(const TensorBlock& block, int64_t columns, int64_t begin, int64_t end, const F& f) {
  const int64_t first = block.first_row * block.columns + block.first_column;
  if (columns == block.columns) {
    if (begin < end) f(ExternalRun{begin, end, first + begin});
    return;
  }
  while (begin < end) {
    const int64_t row = begin / columns, next = std::min((row + 1) * columns, end);
    f(ExternalRun{begin, next, first + row * block.columns + (begin - row * columns)});
    begin = next;
  }
}

}  // namespace llmtrain
