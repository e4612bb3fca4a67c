#pragma once
#include <string>
#include <vector>

#include "hf/weight_index.hpp"
#include "models/decoder.hpp"

namespace llmtrain {

/// A slice of a parameter and the stored tensor that it is.
struct SliceSource {
  int unit;
  int param;
  int slice;
  int64_t columns;
  size_t tensor;  ///< of WeightIndex::tensors
};

struct WeightMatch {
  std::vector<SliceSource> slices;  ///< every slice of every unit, in order
  /// A head that is stored although it is tied, and the embedding: they must be equal. -1: none.
  int64_t tied_head = -1;
  int64_t embedding = -1;
  std::vector<std::string> notes;     ///< how the tensors are named, and what is there and not needed
  std::vector<std::string> warnings;  ///< what is there and may have been wanted
};

/// Finds each of the model's tensors. UserError(bad_content) that names what is missing, what no part of the model asks
/// for, and wrong shapes and types, all at once.
WeightMatch match_weights(const DecoderShape& shape, const std::vector<UnitSpec>& units, const WeightIndex& index);

/// Shape of a slice in files.
std::vector<int64_t> stored_shape(const ParamSpec& param, const ParamSlice& slice);

}  // namespace llmtrain
