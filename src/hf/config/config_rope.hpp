#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hf/config/config_keys.hpp"
#include "models/model_config.hpp"

namespace llmtrain {

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
