#pragma once
// Adapters of fused experts, which PEFT makes with target_parameters, and with target_modules that name the matrices of
// experts, of which it makes target_parameters. With E = experts, F = d_ff_expert, C = d_model:
//
//   model.layers.N.mlp.experts.gate_up_proj  lora_A [E r, C], lora_B [2 F, r E]
//   model.layers.N.mlp.experts.down_proj     lora_A [E r, F], lora_B [C, r E]
//
// A has the rows of the first expert, then those of the second; the columns of B alternate between experts. Rows of B
// are those of the fused matrix. The module is model.layers.N.mlp.experts, and of the first parameter
// model.layers.N.mlp.experts.base_layer if the layer has adapters of both. Here every matrix of an expert has an
// adapter of its own, gate and up with the same A.

#include <string>

#include "hf/adapters/adapter_config.hpp"
#include "hf/weights/weight_index.hpp"

namespace llmtrain {

/// Makes target_modules of target_parameters, which PEFT applies in all layers. `place` is the file's path. Throws
/// UserError(bad_content) for what has no equal here.
void name_expert_modules(AdapterConfig& config, const ModelConfig& model, const std::string& place);

/// Replaces the tensors of target_parameters by those of `part`. Throws UserError(bad_content) that names all missing
/// tensors and wrong shapes.
void split_fused_adapters(WeightIndex& index, const AdapterConfig& config, const LoraPart& part,
                          const ModelConfig& model);

}  // namespace llmtrain
