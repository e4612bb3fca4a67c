#pragma once
// Tensors of all experts of a layer, in two forms.
//
// Experts as Transformers 5 keeps them in memory, and saves them with save_original_format=False: one tensor for all
// experts of a layer. In row-major order an expert's matrix is a range of rows of it, so that each becomes a tensor
// of the index, under its published name, that shares the file.
//
//   model.layers.N.mlp.experts.gate_up_proj  [E, 2 F, C]  rows of the gate, then rows of `up`
//   model.layers.N.mlp.experts.down_proj     [E, C, F]
//   model.layers.N.mlp.gate.weight           [E, C]       router, also of families that publish it elsewhere
//
// with E = experts, F = d_ff_expert, C = d_model.
//
// Experts as GPT-OSS publishes them, see models/expert_places.hpp: each matrix and bias of an expert becomes a tensor
// of the index, under the name that this program has for it, whose elements lie apart in the file (placed_experts.cpp).

#include "core/files/folder_handle.hpp"
#include "hf/weights/weight_index.hpp"
#include "models/decoder.hpp"

namespace llmtrain {

inline constexpr const char* fused_first_name = "model.layers.{}.mlp.experts.gate_up_proj";
inline constexpr const char* fused_last_name = "model.layers.{}.mlp.experts.down_proj";

/// Replaces the fused tensors of layers that lack the model's own ones. Throws UserError(bad_content) that names
/// folder, tensor and both shapes if a shape is wrong, and as match_names for names that contradict each other.
void split_fused_experts(WeightIndex& index, const DecoderShape& shape);

/// Replaces the tensors of all experts, or their codes and scales in MXFP4, both uint8: for a matrix [R, K] of an
/// expert X_blocks [E, R, K / 32, 16], two elements a byte, and X_scales [E, R, K / 32], exponents of 2 plus 127.
/// Throws UserError(bad_content) that names the folder and all tensors that are missing or have a wrong shape, and as
/// match_names for names that contradict each other.
void place_experts(WeightIndex& index, const DecoderShape& shape);

/// Reads the headers of a model's files, with fused experts split. UserError as read_weight_index and
/// split_fused_experts.
WeightIndex read_model_index(const FolderHandle& folder, const DecoderShape& shape);

}  // namespace llmtrain
