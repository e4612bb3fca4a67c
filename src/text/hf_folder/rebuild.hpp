#pragma once
// Steps that a tokenizer class of Transformers makes itself; they replace those of tokenizer.json.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/files/json_node.hpp"
#include "text/hf_folder/classes.hpp"

namespace llmtrain {

/// Returns the values of TokenizerClass::settings: from tokenizer_config.json (`config`), otherwise from the class.
/// Throws UserError(bad_content).
nlohmann::json read_class_settings(const TokenizerClass& kind, const JsonNode& config);

/// Replaces the model's flags, the normalizer, the pre_tokenizer and the decoder of the document; returns the names of
/// those that differed. `document` is tokenizer.json, named `where`. Throws UserError(bad_content).
std::vector<std::string> rebuild_steps(const TokenizerClass& kind, const nlohmann::json& settings,
                                       const std::string& where, nlohmann::json& document);

}  // namespace llmtrain
