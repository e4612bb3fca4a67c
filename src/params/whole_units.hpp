#pragma once
// The units of a model without split matrices, where the weights are those of one with blocks.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/params.hpp"
#include "params/unit_layout.hpp"

namespace llmtrain {

/// Source of weights: reads elements [begin, end) of a flat unit, fp32.
using ReadUnit = std::function<void(int unit, int64_t begin, int64_t end, float* out)>;

/// Consecutive elements [rows, columns] of a flat unit: a tensor or a block of one.
struct UnitBlock {
  int unit;
  int64_t offset;
  int64_t rows, columns;
  TensorBlock place;  ///< in the tensor
};
/// By external name.
using UnitBlocks = std::map<std::string, std::vector<UnitBlock>, std::less<>>;
UnitBlocks blocks_of_units(const std::vector<UnitSpec>& units);

class WholeUnits {
 public:
  /// `whole` are the units to read; `blocks` have their tensors, in any division, in the units that `read` knows.
  WholeUnits(std::vector<UnitSpec> whole, UnitBlocks blocks, ReadUnit read);

  const std::vector<UnitSpec>& units() const { return whole_; }
  /// Reads the tensors among elements [begin, end) of a unit, which the blocks cover; what lies between tensors stays.
  /// It reads whole rows of a tensor in blocks, each block at once.
  void read(int unit, int64_t begin, int64_t end, float* out);

 private:
  void read_slice(const std::string& name, int64_t columns, int64_t begin, int64_t end, float* out);

  std::vector<UnitSpec> whole_;
  std::vector<UnitLayout> layouts_;
  UnitBlocks blocks_;
  ReadUnit read_;
  std::vector<float> rows_;  ///< of a block
};

}  // namespace llmtrain
