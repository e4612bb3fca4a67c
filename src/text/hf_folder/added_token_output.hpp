#pragma once
// Writes added tokens into the files of a tokenizer, as Transformers' save_pretrained does.

#include <string>
#include <string_view>
#include <vector>

#include "text/hf_folder/file_set.hpp"
#include "text/pipeline/added_tokens.hpp"

namespace llmtrain {

/// Returns a tokenizer.json, which is valid JSON, with this list of added tokens; its other bytes stay as they are.
std::string replace_added_tokens(std::string_view tokenizer_json, const std::vector<AddedToken>& tokens);

/// Writes all added tokens of a tokenizer: into tokenizer.json where it has one, and into the added_tokens_decoder of
/// tokenizer_config.json where it has no tokenizer.json or the file has that list already. The set has a
/// tokenizer_config.json, unless it has a tokenizer.json. `pad_token` is named there; empty: none.
void write_added_tokens(TokenizerFileSet& set, const std::vector<AddedToken>& tokens, const std::string& pad_token);

}  // namespace llmtrain
