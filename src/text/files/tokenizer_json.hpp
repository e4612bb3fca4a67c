#pragma once
// Reads tokenizer.json, the tokenizers library's description of a tokenizer. Every part and option is used or refused
// by name; truncation and padding are settings of who calls the library, not of the text's tokens, and are not used.

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/files/json_node.hpp"
#include "core/files/json_reader.hpp"
#include "text/pipeline/pipeline_tokenizer.hpp"

namespace llmtrain {

// Above the largest vocabularies that decoders have (Gemma 3: 33 MB, 1.8 million values), and what a hostile file takes
// stays below 256 MiB.
inline constexpr int64_t max_tokenizer_json = int64_t{48} << 20;  ///< bytes
inline constexpr JsonLimits tokenizer_limits{.bytes = max_tokenizer_json, .values = int64_t{1} << 21};

/// What may be changed of a tokenizer.json while it is read, in this order.
struct TokenizerJsonChanges {
  std::function<void(nlohmann::json&)> document;
  AddTokens added;
  std::function<void(PostProcessor&)> post;
};

/// `name` is the file's, for messages. UserError(bad_content).
TokenizerParts read_tokenizer_json(std::string_view text, const std::string& name,
                                   const TokenizerJsonChanges& changes = {});

inline constexpr size_t max_steps = 64;  ///< of a section
/// Returns the "type" of a step, "(none)" without one.
std::string type_of(const JsonNode& node);
/// A text of one character.
char32_t character_of(const JsonNode& node);

// Its sections; `where` names them in messages. null is no step.
std::vector<std::unique_ptr<Normalizer>> read_normalizer(const JsonNode& node);
/// `takes_bytes` becomes true when the last step was GPT-2's byte form, which is left out when `may_take_bytes`.
std::vector<std::unique_ptr<PreTokenizer>> read_pre_tokenizer(const JsonNode& node, bool may_take_bytes,
                                                              bool& takes_bytes);
std::vector<std::unique_ptr<TokenDecoder>> read_decoder(const JsonNode& node);
/// `id_limit`: ids in it are below.
PostProcessor read_post_processor(const JsonNode& node, int64_t id_limit);

/// An object of tokens and ids: bounded, unique, nearly without gaps.
Vocabulary read_vocabulary(const JsonNode& node);
/// Appends what a file of merges has: two tokens separated by a space a line; a first line "#version" is none.
std::vector<MergeRule> read_merge_lines(std::string_view text, const std::string& name, const Vocabulary& vocabulary);

}  // namespace llmtrain
