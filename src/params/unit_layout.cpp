#include "params/unit_layout.hpp"

#include <fmt/format.h>

#include <limits>

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

}  // namespace

UnitLayout::UnitLayout(const UnitSpec& spec) : offsets_(spec.params.size()) {
  for (const bool decay : {true, false}) {
    for (size_t p = 0; p < spec.params.size(); ++p) {
      const ParamSpec& param = spec.params[p];
      if (param.decay != decay) continue;
      offsets_[p] = elements_;
      elements_ += whole_chunks(checked_numel(spec, param));
      for (const ParamSlice& slice : param.slices) {
        if (!decay || !slice.fixed) continue;
        const int64_t begin = offsets_[p] + slice.first_row * param.columns;
        extend_ranges(begin, true, param.lr_scale);
        extend_ranges(begin + slice.rows * param.columns, false, param.lr_scale);
      }
      extend_ranges(elements_, decay, param.lr_scale);
    }
  }
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
  for (int r = 0; r < size; ++r) result.push_back(borders_of_shard(elements_, r, size).end);
  return result;
}

}  // namespace llmtrain
