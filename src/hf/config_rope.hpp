#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hf/config_keys.hpp"
#include "models/model_config.hpp"

namespace llmtrain {

/// rope_theta, rope_scaling (v4) or rope_parameters (v5), partial_rotary_factor -> the model's rope_ fields. Its sizes
/// and family are known already. Keys that are in none of the lists go to `unknown`.
void read_rope(ConfigKeys& keys, ModelConfig& model, std::vector<std::string>& problems,
               std::vector<std::string>& unknown);

/// The other way, v4 style, which v5 reads too.
void write_rope(nlohmann::json& config, const ModelConfig& model);

}  // namespace llmtrain
