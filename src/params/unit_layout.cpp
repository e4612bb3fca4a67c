#include "params/unit_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/error.hpp"

namespace llmtrain {

namespace {

int64_t whole_chunks(int64_t elements) { return (elements + chunk_elements - 1) / chunk_elements * chunk_elements; }

/// Returns rows * columns. Shapes come from decks and files, so that the product may overflow.
int64_t checked_numel(const UnitSpec& unit, const ParamSpec& param) {
  constexpr int64_t most =
      std::numeric_limits<int64_t>::max() / 64;  // bytes of any dtype, and sums of a few, stay below the limit
  LLMTRAIN_CHECK(
      param.rows > 0 && param.columns > 0 && param.rows <= most / param.columns,
      fmt::format("parameter {} of unit {} cannot be {} x {}", param.name, unit.name, param.rows, param.columns));
  return param.rows * param.columns;
}

/// Number of elements of blocks of rows, in whole chunks: the blocks are as equal as these and the alignment of
/// kernels allow, and at most `most` elements large if a few rows are.
int64_t block_elements(const ParamSpec& matrix, int64_t most) {
  constexpr int64_t aligned_rows = 128;
  const int64_t chunk_rows = chunk_elements / std::gcd(chunk_elements, matrix.columns);
  const int64_t fitting = most / matrix.columns;
  const int64_t step = fitting < aligned_rows ? chunk_rows : std::max(aligned_rows, chunk_rows);
  const int64_t rows = std::max(fitting / step * step, chunk_rows);
  const int64_t blocks = (matrix.rows + rows - 1) / rows, each = (matrix.rows + blocks - 1) / blocks;
  return std::min(rows, (each + step - 1) / step * step) * matrix.columns;
}

}  // namespace

UnitLayout::UnitLayout(const UnitSpec& spec, int64_t segment_elements) : offsets_(spec.params.size()) {
  for (const bool decay : {true, false}) {
    for (size_t p = 0; p < spec.params.size(); ++p) {
      const ParamSpec& param = spec.params[p];
      if (param.decay != decay) continue;
      place(spec, p);
      for (const ParamSlice& slice : param.slices) {
        if (!decay || !slice.fixed) continue;
        const int64_t begin = offsets_[p].front() + slice.first_row * param.columns;
        extend_ranges(begin, true, param.lr_scale);
        extend_ranges(begin + slice.rows * param.columns, false, param.lr_scale);
      }
      extend_ranges(elements_, decay, param.lr_scale);
    }
  }
  divide(spec, segment_elements);
}

/// Gives a parameter and its slices the next elements.
void UnitLayout::place(const UnitSpec& spec, size_t p) {
  const ParamSpec& param = spec.params[p];
  const int64_t begin = elements_;
  elements_ += whole_chunks(checked_numel(spec, param));
  for (const ParamSlice& slice : param.slices) offsets_[p].push_back(begin + slice.first_row * param.columns);
  if (param.slices.empty()) offsets_[p].push_back(begin);
  if (!spec.quantization) return;
  elements_ = begin;
  for (size_t i = 0; i < param.slices.size(); ++i) {
    offsets_[p][i] = elements_;
    elements_ += whole_chunks(param.slices[i].rows * param.columns);
  }
}

/// Appends segments up to element `end`, each of at most `most` elements.
void UnitLayout::cut(int64_t end, int64_t most) {
  while (segments_.back() < end) segments_.push_back(std::min(segments_.back() + most, end));
}

void UnitLayout::divide(const UnitSpec& spec, int64_t segment_elements) {
  LLMTRAIN_CHECK(segment_elements > 0, "a segment has elements");
  if (elements_ <= segment_elements) return cut(elements_, elements_);
  const auto cut_run = [&](int64_t end) {
    const int64_t chunks = (end - segments_.back()) / chunk_elements;
    const int64_t most = std::max<int64_t>(segment_elements / chunk_elements, 1);
    const int64_t count = std::max<int64_t>((chunks + most - 1) / most, 1);
    cut(end, (chunks + count - 1) / count * chunk_elements);
  };
  for (size_t p = 0; p < spec.params.size(); ++p) {  // matrices are in the order of their offsets
    const ParamSpec& param = spec.params[p];
    if (!param.by_rows || !param.decay || spec.quantization) continue;
    cut_run(offset(static_cast<int>(p)));
    cut(segments_.back() + whole_chunks(param.numel()), block_elements(param, segment_elements));
  }
  cut_run(elements_);
}

/// Gives the elements from the last range to `end` this treatment.
void UnitLayout::extend_ranges(int64_t end, bool decay, double lr_scale) {
  const int64_t begin = ranges_.empty() ? 0 : ranges_.back().end;
  if (begin == end) return;
  const bool goes_on = !ranges_.empty() && ranges_.back().decay == decay && ranges_.back().lr_scale == lr_scale;
  if (!goes_on) ranges_.push_back({begin, end, decay, lr_scale});
  ranges_.back().end = end;
}

ShardBorders borders_of_shard(int64_t elements, int64_t rank, int64_t size) {
  LLMTRAIN_CHECK(size > 0 && rank >= 0 && rank < size, "a unit is divided among at least one rank");
  const int64_t chunks = elements / chunk_elements;
  const int64_t each = chunks / size, rest = chunks % size;
  // Returns chunks * r / size without overflow.
  const auto border = [&](int64_t r) { return chunk_elements * (each * r + rest * r / size); };
  return {border(rank), border(rank + 1)};
}

std::vector<int64_t> UnitLayout::borders(int size) const {
  LLMTRAIN_CHECK(size > 0, "a unit is divided among at least one rank");
  std::vector<int64_t> result{0};
  for (size_t i = 0; i + 1 < segments_.size(); ++i) {
    const int64_t begin = segments_[i], elements = segments_[i + 1] - begin;
    for (int r = 0; r < size; ++r) result.push_back(begin + borders_of_shard(elements, r, size).end);
  }
  return result;
}

}  // namespace llmtrain
