#pragma once
// Experts in config.json.

#include <nlohmann/json.hpp>

#include "hf/config/config_keys.hpp"
#include "models/model_config.hpp"

namespace llmtrain {

/// Reads the keys of a family that has experts; d_ff is known.
void read_experts(ConfigKeys& keys, ModelConfig& c);
void write_experts(nlohmann::json& j, const ModelConfig& c);

}  // namespace llmtrain
