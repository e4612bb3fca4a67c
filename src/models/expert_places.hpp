#pragma once
// Places of experts' matrices and biases in the tensors of all experts that the files of a family have
// (DecoderNames::fused_first):
//
//   ...gate_up_proj       [E, C, 2 F]  columns of gate and up alternate
//   ...gate_up_proj_bias  [E, 2 F]     elements alternate
//   ...down_proj          [E, F, C]
//   ...down_proj_bias     [E, C]
//
// with E = experts, F = d_ff_expert, C = d_model.

#include <map>
#include <string>
#include <vector>

#include "models/decoder.hpp"

namespace llmtrain {

/// Element (r, c) of a part is element first + r row_stride + c column_stride of the tensor. The parts of an expert
/// fill the `extent` elements from `begin` on.
struct ExpertPlace {
  std::string tensor;
  std::vector<int64_t> shape;  ///< of the tensor
  int64_t rows, columns;       ///< of the part; 1 column: a bias
  int64_t first, row_stride, column_stride;
  int64_t begin, extent;
};

/// By name of a slice of the model; empty if the family's files have a tensor for each.
using ExpertPlaces = std::map<std::string, ExpertPlace, std::less<>>;
ExpertPlaces expert_places(const DecoderShape& shape);

}  // namespace llmtrain
