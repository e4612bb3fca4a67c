#pragma once
// Reads tokenizer.json, the tokenizers library's description of a tokenizer. Every section and option is used or
// refused by name; truncation and padding are settings of the library's caller, not of the text's tokens, and are not
// used.

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/files/json_node.hpp"
#include "core/files/json_reader.hpp"
#include "text/pipeline/pipeline_tokenizer.hpp"

namespace llmtrain {

// Larger than the largest vocabularies of decoders (Gemma 3: 33 MB, 1.8 million values); the memory that a hostile file
// can take stays below 256 MiB.
inline constexpr int64_t max_tokenizer_json = int64_t{48} << 20;  ///< bytes
inline constexpr JsonLimits tokenizer_limits{.bytes = max_tokenizer_json, .values = int64_t{1} << 21};

/// Changes to a tokenizer.json while it is read, in this order.
struct TokenizerJsonChanges {
  std::function<void(nlohmann::json&)> document;
  AddTokens added;
  std::function<void(PostProcessor&)> post;
};

/// `name` is the file's name for messages. Throws UserError(bad_content).
TokenizerSteps read_tokenizer_json(std::string_view text, const std::string& name,
                                   const TokenizerJsonChanges& changes = {});

inline constexpr size_t max_steps = 64;  ///< per section
/// Returns the "type" of a step, "(none)" without one.
std::string type_of(const JsonNode& node);
/// Reads a text of one character.
char32_t character_of(const JsonNode& node);

// Readers of its sections; `where` names them in messages. null means no step.
std::vector<std::unique_ptr<Normalizer>> read_normalizer(const JsonNode& node);
/// Sets `takes_bytes` if the last step was GPT-2's byte form, which is omitted if `may_take_bytes`.
std::vector<std::unique_ptr<PreTokenizer>> read_pre_tokenizer(const JsonNode& node, bool may_take_bytes,
                                                              bool& takes_bytes);
std::vector<std::unique_ptr<TokenDecoder>> read_decoder(const JsonNode& node);
/// All ids in it are below `id_limit`.
PostProcessor read_post_processor(const JsonNode& node, int64_t id_limit);

/// Reads an object of tokens and ids: bounded, unique, nearly without gaps.
Vocabulary read_vocabulary(const JsonNode& node);
/// Appends the merges of a file: two tokens separated by a space per line; a first line "#version" is skipped.
std::vector<MergeRule> read_merge_lines(std::string_view text, const std::string& name, const Vocabulary& vocabulary);

}  // namespace llmtrain
