#pragma once
// Quantised matrices in bitsandbytes' safetensors layout. nf4 and fp4: `weight` (two codes a byte, [bytes, 1]),
// `weight.absmax` (fp32; with double quantisation bytes), `weight.quant_map`, `weight.nested_absmax`,
// `weight.nested_quant_map`, and `weight.quant_state.bitsandbytes__nf4` or `__fp4` (JSON as bytes: quant_type,
// blocksize, dtype, shape, nested_blocksize, nested_dtype, nested_offset). int8: `weight` (int8 [rows, columns]), `SCB`
// (fp32 [rows]) and `weight_format` (0: rows).

#include "hf/weights/weight_index.hpp"

namespace llmtrain {

/// Makes one tensor of the several of each quantised matrix; the index is sorted by name. Throws
/// UserError(bad_content) that names file, tensor and problem: a plane that is missing, short or left over, a
/// quant_type, shape or map that is not known.
void join_quantized_tensors(WeightIndex& index, const FolderHandle& folder);

/// Names of the tensors beside `weight`.
inline constexpr std::string_view quant_state_prefix = ".quant_state.bitsandbytes__";

}  // namespace llmtrain
