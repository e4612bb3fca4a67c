#pragma once
// A small model whose matrices are split into blocks, without its mathematics: fused and transposed rows, columns,
// vectors, a vocabulary that the blocks do not divide, and common units.

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "harness/whole_parameters.hpp"
#include "params/tensor_blocks.hpp"

namespace llmtrain::test {

struct SplitModel {
  static constexpr int64_t width = 40, heads_width = 48, hidden = 56, vocabulary = 70;

  /// Units of the blocks of a share; one block: the units of an unsplit model.
  static std::vector<UnitSpec> units(const TensorShare& share) {
    std::vector<UnitSpec> all{{"common", {vector("norm", {0, 0, width, 1}, share)}}};
    for (int64_t s = share.first; s < share.first + share.count; ++s) {
      const int64_t q = heads_width / share.blocks, f = hidden / share.blocks;
      const int64_t rows = (vocabulary + share.blocks - 1) / share.blocks, row = s * rows;
      UnitSpec layer{share.splits() ? "layer of block " + std::to_string(s) : "layer", {}};
      layer.params.push_back(fused(share, s));
      layer.params.push_back(
          matrix("projection", q, {{"projection.weight", 0, q, true}}, share, {s * q, 0, heads_width, width}));
      layer.params.push_back(matrix("down", width, {{"down.weight", 0, width}}, share, {0, s * f, width, hidden}));
      layer.params.back().columns = f;
      layer.params.push_back(vector("up.bias", {s * f, 0, hidden, 1}, share, f));
      UnitSpec table{share.splits() ? "table of block " + std::to_string(s) : "table", {}};
      const int64_t count = std::min(rows, vocabulary - row);
      table.params.push_back(matrix("table", count, {{"table.weight", 0, count}}, share, {row, 0, vocabulary, width}));
      for (UnitSpec* unit : {&layer, &table}) {
        if (share.splits()) unit->tensor_block = s;
        all.push_back(*unit);
      }
    }
    return all;
  }

 private:
  static ParamSpec matrix(std::string name, int64_t rows, std::vector<ParamSlice> slices, const TensorShare& share,
                          const TensorBlock& block) {
    if (share.splits()) slices.front().block = block;
    return {std::move(name), rows, block.columns, true, Initializer::normal(0.5), std::move(slices)};
  }
  static ParamSpec vector(const std::string& name, const TensorBlock& block, const TensorShare& share,
                          int64_t rows = width) {
    ParamSpec spec{name, rows, 1, false, Initializer::uniform(0.25), {{name, 0, rows}}};
    if (share.splits() && rows < block.rows) spec.slices.front().block = block;
    return spec;
  }
  /// Queries, keys and values of one external matrix; those of a block are three slices of it.
  static ParamSpec fused(const TensorShare& share, int64_t s) {
    const std::string name = "fused.weight";
    ParamSpec spec{"fused", 3 * heads_width / share.blocks, width, true, Initializer::normal(0.5), {}};
    if (!share.splits()) {
      spec.slices = {{name, 0, 3 * heads_width, true}};
      return spec;
    }
    const int64_t q = heads_width / share.blocks;
    for (int64_t part = 0; part < 3; ++part) {
      spec.slices.push_back({name, part * q, q, true});
      spec.slices.back().block = {part * heads_width + s * q, 0, 3 * heads_width, width};
    }
    return spec;
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

/// External tensors of a store, before ParamSlice::transposed, on every rank. Collective.
inline std::map<std::string, std::vector<float>> external_tensors(ParamStore& store) {
  std::map<std::string, std::vector<float>> tensors;
  for (int u = 0; u < store.units().size(); ++u) {
    const UnitSpec& unit = store.units()[u].spec;
    for (size_t p = 0; p < unit.params.size(); ++p) {
      const ParamSpec& param = unit.params[p];
      std::vector<float> values(static_cast<size_t>(param.numel()));
      gather_parameter(store, u, static_cast<int>(p), values.data());
      for (const ParamSlice& slice : param.slices) {
        place_slice(param, slice, values.data() + slice.first_row * param.columns, tensors[slice.name]);
      }
    }
  }
  return tensors;
}

}  // namespace llmtrain::test
