#include "params/whole_units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "params/tensor_blocks.hpp"

namespace llmtrain {

UnitBlocks blocks_of_units(const std::vector<UnitSpec>& units) {
  UnitBlocks blocks;
  const std::vector<UnitLayout> layouts = layouts_of(units);
  for_each_slice(units, [&](const SlicePlace& at, const ParamSpec& param, const ParamSlice& slice) {
    blocks[slice.name].push_back({at.unit, at.offset(layouts), slice.rows, param.columns, block_of(param, slice)});
  });
  return blocks;
}

WholeUnits::WholeUnits(std::vector<UnitSpec> whole, UnitBlocks blocks, ReadUnit read)
    : whole_(std::move(whole)), layouts_(layouts_of(whole_)), blocks_(std::move(blocks)), read_(std::move(read)) {}

void WholeUnits::read(int unit, int64_t begin, int64_t end, float* out) {
  const UnitSpec& spec = whole_[static_cast<size_t>(unit)];
  for (size_t p = 0; p < spec.params.size(); ++p) {
    const ParamSpec& param = spec.params[p];
    for (size_t s = 0; s < param.slices.size(); ++s) {
      const ParamSlice& slice = param.slices[s];
      const int64_t offset = layouts_[static_cast<size_t>(unit)].offset(static_cast<int>(p), static_cast<int>(s));
      const int64_t first = std::max(begin, offset), last = std::min(end, offset + slice.rows * param.columns);
      if (first < last) read_slice(slice.name, param.columns, first - offset, last - offset, out + (first - begin));
    }
  }
}

void WholeUnits::read_slice(const std::string& name, int64_t columns, int64_t begin, int64_t end, float* out) {
  const auto found = blocks_.find(name);
  LLMTRAIN_CHECK(found != blocks_.end(), fmt::format("no unit has the tensor {}", name));
  const UnitBlock& only = found->second.front();
  if (found->second.size() == 1 && only.columns == columns) {
    return read_(only.unit, only.offset + begin, only.offset + end, out);
  }
  const int64_t first = begin / columns, last = (end - 1) / columns + 1;
  int64_t copied = 0;
  for (const UnitBlock& block : found->second) {
    const TensorBlock& at = block.place;
    LLMTRAIN_CHECK(at.columns == columns, fmt::format("the blocks of {} are those of another matrix", name));
    const int64_t row = std::max(first - at.first_row, int64_t{0}), stop = std::min(last - at.first_row, block.rows);
    if (row >= stop) continue;
    const int64_t from = row * block.columns, count = (stop - row) * block.columns;
    rows_.resize(static_cast<size_t>(count));
    read_(block.unit, block.offset + from, block.offset + from + count, rows_.data());
    each_external_run(at, block.columns, from, from + count, [&](const ExternalRun& run) {
      const int64_t to = std::max(run.first, begin), until = std::min(run.first + run.end - run.begin, end);
      if (to >= until) return;
      std::copy_n(rows_.data() + (run.begin - from) + (to - run.first), until - to, out + (to - begin));
      copied += until - to;
    });
  }
  LLMTRAIN_CHECK(copied == end - begin, fmt::format("the blocks of {} are not the whole tensor", name));
}

}  // namespace llmtrain
