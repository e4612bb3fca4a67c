#pragma once
// Tokens that stand beside a vocabulary in files of their own, as Transformers keeps them where there is no
// tokenizer.json.

#include <string>
#include <vector>

#include "text/added_tokens.hpp"
#include "text/json_node.hpp"
#include "text/vocabulary.hpp"

namespace llmtrain {

/// added_tokens_decoder of tokenizer_config.json: {"50257": {"content": "<pad>", "special": true, ...}, ...}. In the
/// order of their ids. UserError(bad_content).
std::vector<AddedToken> read_added_tokens_decoder(const JsonNode& tokenizer_config);

/// added_tokens.json, the older form: {"<pad>": 50257, ...}.
std::vector<AddedToken> read_added_tokens_json(const JsonNode& root);

/// The tokens that tokenizer_config.json or special_tokens_map.json give a meaning (bos_token and so on): each is
/// special.
std::vector<std::string> read_special_token_names(const JsonNode& config);

/// The tokens of a vocabulary and those beside it as one list; `named` become special. A token has one id.
std::vector<AddedToken> join_added_tokens(std::vector<AddedToken> beside, const std::vector<std::string>& named,
                                          const Vocabulary& vocabulary, const std::string& place);

}  // namespace llmtrain
