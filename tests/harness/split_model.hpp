#pragma once
// Models whose matrices are split into blocks, without their mathematics.

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "harness/whole_parameters.hpp"
#include "params/tensor_blocks.hpp"

namespace llmtrain::test {

/// Division of a parameter into blocks; thirds: queries, keys and values of one external matrix.
enum class Division : uint8_t { none, rows, thirds, columns };
using DivisionOf = std::function<Division(const ParamSpec& param)>;

/// The part of a slice that a block has: slices for a parameter of that block alone, whose last row is `row`.
inline void add_part(std::vector<ParamSlice>& slices, int64_t& row, const ParamSpec& param, const ParamSlice& slice,
                     Division division, const TensorShare& share) {
  const int64_t parts = division == Division::thirds ? 3 : 1, part_rows = slice.rows / parts;
  for (int64_t part = 0; part < parts; ++part) {
    ParamSlice own = slice;
    own.first_row = row;
    TensorBlock block{0, 0, slice.rows, param.columns};
    if (division == Division::columns) {
      block.first_column = share.first * (param.columns / share.blocks);
    } else {  // the last block may have fewer rows
      const int64_t each = (part_rows + share.blocks - 1) / share.blocks;
      block.first_row = part * part_rows + share.first * each;
      own.rows = std::min(each, part_rows - share.first * each);
    }
    own.block = block;
    row += own.rows;
    slices.push_back(std::move(own));
  }
}

/// The units of a share of blocks: of each whole unit what is not divided, then what each block has.
inline std::vector<UnitSpec> split_units(const std::vector<UnitSpec>& whole, const TensorShare& share,
                                         const DivisionOf& division) {
  if (!share.splits()) return whole;
  std::vector<UnitSpec> units;
  const auto add = [&](UnitSpec unit, const UnitSpec& from, const auto& param_of) {
    unit.params.clear();
    for (const ParamSpec& param : from.params) param_of(unit, param);
    if (!unit.params.empty()) units.push_back(std::move(unit));
  };
  for (const UnitSpec& unit : whole) {
    add(unit, unit, [&](UnitSpec& to, const ParamSpec& param) {
      if (division(param) == Division::none) to.params.push_back(param);
    });
    for (int64_t s = share.first; s < share.first + share.count; ++s) {
      UnitSpec block = unit;
      block.name += " of block " + std::to_string(s);
      block.tensor_block = s;
      add(block, unit, [&](UnitSpec& to, const ParamSpec& param) {
        if (division(param) == Division::none) return;
        ParamSpec own = param;
        own.slices.clear();
        own.rows = 0;
        for (const ParamSlice& slice : param.slices) {
          add_part(own.slices, own.rows, param, slice, division(param), {share.blocks, s, 1});
        }
        if (division(param) == Division::columns) own.columns /= share.blocks;
        to.params.push_back(std::move(own));
      });
    }
  }
  return units;
}

/// A small model: fused and transposed rows, columns, vectors, a vocabulary that the blocks do not divide, and a common
/// unit.
struct SplitModel {
  static constexpr int64_t width = 40, heads_width = 48, hidden = 56, vocabulary = 470;

  static std::vector<UnitSpec> units(const TensorShare& share) {
    const std::vector<UnitSpec> whole{
        {"common", {vector("norm", width)}},
        {"layer",
         {matrix("fused", 3 * heads_width, width, true), matrix("projection", heads_width, width, true),
          matrix("down", width, hidden, false), vector("up.bias", hidden)}},
        {"table", {matrix("table", vocabulary, width, false)}}};
    return split_units(whole, share, [](const ParamSpec& param) {
      if (param.name == "fused") return Division::thirds;
      if (param.name == "norm") return Division::none;
      return param.name == "down" ? Division::columns : Division::rows;
    });
  }

 private:
  static ParamSpec matrix(const std::string& name, int64_t rows, int64_t columns, bool transposed) {
    ParamSpec spec{name, rows, columns, true, Initializer::normal(0.5), {{name + ".weight", 0, rows, transposed}}};
    spec.hidden = name != "table";
    return spec;
  }
  static ParamSpec vector(const std::string& name, int64_t rows) {
    return {name, rows, 1, false, Initializer::uniform(0.25), {{name, 0, rows}}};
  }
};

/// Copies a slice's values into its external tensor.
inline void place_slice(const ParamSpec& param, const ParamSlice& slice, const float* values,
                        std::vector<float>& tensor) {
  const TensorBlock block = block_of(param, slice);
  tensor.resize(static_cast<size_t>(block.rows * block.columns));
  each_external_run(block, param.columns, 0, slice.rows * param.columns, [&](const ExternalRun& run) {
    std::copy(values + run.begin, values + run.end, tensor.begin() + run.first);
  });
}

/// External tensors of a store, before ParamSlice::transposed, on every rank of the job. Collective.
inline std::map<std::string, std::vector<float>> external_tensors(ParamStore& store,
                                                                  Communicator& job = communicator()) {
  std::map<std::string, std::vector<float>> tensors;
  const std::vector<UnitSpec>& units = store.units().model_units();
  const std::vector<UnitLayout> layouts = layouts_of(units);
  for_each_slice(units, [&](const SlicePlace& at, const ParamSpec& param, const ParamSlice& slice) {
    const int64_t first = at.offset(layouts), count = slice.rows * param.columns;
    std::vector<float> values(static_cast<size_t>(count));
    store.gather_range(at.unit, first, first + count, values.data());
    job.broadcast(values.data(), count * static_cast<int64_t>(sizeof(float)));
    place_slice(param, slice, values.data(), tensors[slice.name]);
  });
  return tensors;
}

}  // namespace llmtrain::test
