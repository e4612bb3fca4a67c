#pragma once
// config.json <-> the deck's [model]. Every key of a file is used, is known to have no effect on training, or is named
// in a warning, since Transformers does not read it either. A value that changes the model's mathematics and is not
// supported is an error.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/model_config.hpp"

namespace llmtrain {

inline constexpr int64_t max_config_bytes = int64_t{1} << 20;

/// What config.json says besides the shape.
struct TokenIds {
  int64_t bos = -1;  ///< -1: none
  int64_t pad = -1;
  std::vector<int64_t> eos;
};

struct HfConfig {
  ModelConfig model;  ///< resolved; both dropouts 0, since they are the deck's
  TokenIds ids;
  std::vector<std::string> warnings;  ///< what the user should know, each beginning with the file's path
};

/// Of v4 and v5 style. `place` is the file's path, for messages. UserError(bad_content) with everything that is wrong.
HfConfig parse_hf_config(std::string_view text, const std::string& place);

/// The ids in generation_config.json, which Transformers' generate() takes rather than config.json's; `otherwise` those
/// that it does not name. UserError(bad_content).
TokenIds parse_generation_ids(std::string_view text, const std::string& place, const TokenIds& otherwise);

/// "LlamaForCausalLM"
std::string_view architecture_name(ModelConfig::Family family);

/// dtype of stored weights as config.json names it: float32, bfloat16, float16.
std::string write_hf_config(const ModelConfig& model, const TokenIds& ids, std::string_view dtype);

/// generation_config.json, of the ids that the model has.
std::string write_generation_config(const ModelConfig& model, const TokenIds& ids);

/// Why no config.json describes this model, or "": Transformers has no such architecture.
std::string hf_config_obstacle(const ModelConfig& model);

/// The same text, unless it names another dtype of the weights.
std::string with_dtype(const std::string& config_text, const std::string& place, std::string_view dtype);

}  // namespace llmtrain
