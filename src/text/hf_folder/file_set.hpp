#pragma once
// Files of a tokenizer: found by name, identified by their first bytes.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.hpp"

namespace llmtrain {

namespace tokenizer_names {
inline constexpr std::string_view json = "tokenizer.json", vocab = "vocab.json", merges = "merges.txt",
                                  added = "added_tokens.json", config = "tokenizer_config.json";
/// The tokenizer_class with which every version of Transformers keeps the steps of tokenizer.json.
inline constexpr const char* keeping_class = "PreTrainedTokenizerFast";
inline constexpr std::array<std::string_view, 4> sentencepiece = {"tokenizer.model", "spiece.model",
                                                                  "sentencepiece.bpe.model", "tokenizer_model"};
/// Files that name special tokens by their text, and files of the model that give their ids.
inline constexpr std::array<std::string_view, 2> with_texts = {config, "special_tokens_map.json"};
inline constexpr std::string_view of_model = "config.json";
inline constexpr std::array<std::string_view, 2> with_ids = {"generation_config.json", of_model};
}  // namespace tokenizer_names

enum class TokenizerFormat : uint8_t { json, gpt2, sentencepiece, tiktoken };

/// Files of a tokenizer: the main files first, then the files that add to them.
struct TokenizerFileSet {
  std::string folder;  ///< for messages, ends with a slash; empty for a stored tokenizer
  std::vector<TokenizerFile> files;
  bool is_folder = true;  ///< false: the main file was named by itself

  const TokenizerFile* find(std::string_view name) const;  ///< null if not present
  std::string path(const TokenizerFile& file) const { return folder + file.name; }
};

TokenizerFormat format_of(const TokenizerFileSet& set);

/// Returns true if a file of this name is next to the main one.
bool is_companion_file(std::string_view name);

/// Accepts a file or a folder as `path`; in a folder tokenizer.json comes first. Throws UserError(missing_input).
TokenizerFileSet read_tokenizer_files(const std::string& path);

}  // namespace llmtrain
