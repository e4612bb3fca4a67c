#pragma once
// The steps that a tokenizer class of Transformers makes by itself, put in the place of those of tokenizer.json.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/files/json_node.hpp"
#include "text/files/tokenizer_class.hpp"

namespace llmtrain {

/// Values of TokenizerClass::settings: as `config`, tokenizer_config.json, says, else the class.
/// UserError(bad_content).
nlohmann::json read_class_settings(const TokenizerClass& kind, const JsonNode& config);

/// Replaces the model's flags, the normalizer, the pre_tokenizer and the decoder of the document; returns the names of
/// those that said something else. `document`: tokenizer.json, named `where`. UserError(bad_content).
std::vector<std::string> rebuild_steps(const TokenizerClass& kind, const nlohmann::json& settings,
                                       const std::string& where, nlohmann::json& document);

}  // namespace llmtrain
