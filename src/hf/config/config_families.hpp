#pragma once
// Keys of config.json that one or two families have.

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

}  // namespace llmtrain
