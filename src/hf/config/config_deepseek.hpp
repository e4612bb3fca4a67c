#pragma once
// DeepSeek's latent attention and experts in config.json.

#include <nlohmann/json.hpp>

#include "hf/config/config_keys.hpp"
#include "models/model_config.hpp"

namespace llmtrain {

/// Reads the widths of heads; their number is known.
void read_latent(ConfigKeys& keys, ModelConfig& c);
void read_deepseek_experts(ConfigKeys& keys, ModelConfig& c);
void write_deepseek(nlohmann::json& j, const ModelConfig& c);

}  // namespace llmtrain
