#pragma once
// Parts of config.json: keys that one or two families have, experts, latent attention and positions.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hf/config/config_keys.hpp"
#include "models/models.hpp"

namespace llmtrain {

/// Returns Transformers' name of the family, as in model_type.
std::string_view model_type_of(ModelConfig::Family family);

/// Reads an activation without a gate.
ModelConfig::Activation plain_activation(ConfigKeys& keys, std::string_view key, const std::string& fallback);
/// Reads sizes and parts of Falcon, but its rope.
void read_falcon(ConfigKeys& keys, ModelConfig& c);
void write_falcon(nlohmann::json& j, const ModelConfig& c);
/// Reads which layers of SmolLM3 have no positions; their number is known.
void read_layers_without_rope(ConfigKeys& keys, ModelConfig& c);
/// Reads what is left of the keys of a family whose sizes, windows and rope are known.
void read_family_keys(ConfigKeys& keys, ModelConfig& c);
void write_family_keys(nlohmann::json& j, const ModelConfig& c);

// Experts: config_experts.cpp.
/// Reads the keys of a family that has experts; d_ff is known.
void read_experts(ConfigKeys& keys, ModelConfig& c);
void write_experts(nlohmann::json& j, const ModelConfig& c);

// DeepSeek's latent attention and experts: config_deepseek.cpp.
/// Reads the widths of heads; their number is known.
void read_latent(ConfigKeys& keys, ModelConfig& c);
void read_deepseek_experts(ConfigKeys& keys, ModelConfig& c);
void write_deepseek(nlohmann::json& j, const ModelConfig& c);

// Positions: config_rope.cpp.
/// Reads the positions of a model with rope, which has no weights for them: a number such as 1e30 means that nothing
/// limits them.
int64_t rotary_positions(ConfigKeys& keys, int64_t fallback);

/// Converts rope_theta, rope_scaling (v4) or rope_parameters (v5), and partial_rotary_factor to the model's rope_
/// fields. Sizes and family of the model are known already. Keys that are in none of the lists are appended to
/// `unknown`.
void read_rope(ConfigKeys& keys, ModelConfig& model, std::vector<std::string>& problems,
               std::vector<std::string>& unknown);

/// Converts in the other direction, in the style of v4, which v5 also reads.
void write_rope(nlohmann::json& config, const ModelConfig& model);

}  // namespace llmtrain
