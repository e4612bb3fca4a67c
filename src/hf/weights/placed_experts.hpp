#pragma once
// Experts as GPT-OSS publishes them: a tensor of all experts of a layer, see models/expert_places.hpp. Each matrix and
// bias of an expert becomes a tensor of the index, under the name that this program has for it, whose elements lie
// apart in the file.

#include "hf/weights/weight_index.hpp"
#include "models/decoder.hpp"

namespace llmtrain {

/// Replaces the tensors of all experts, or their codes and scales in MXFP4, both uint8: for a matrix [R, K] of an
/// expert X_blocks [E, R, K / 32, 16], two elements a byte, and X_scales [E, R, K / 32], exponents of 2 plus 127.
/// Throws UserError(bad_content) that names the folder and all tensors that are missing or have a wrong shape, and as
/// match_names for names that contradict each other.
void place_experts(WeightIndex& index, const DecoderShape& shape);

}  // namespace llmtrain
