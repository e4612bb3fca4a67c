#pragma once
// Added tokens in the files of a tokenizer's folder besides the main file, read like Transformers' AutoTokenizer: which
// tokens are added, in which order, with which flags, and which of them have a name (eos_token ...).
// Writes added tokens into the files of a tokenizer, as Transformers' save_pretrained does.

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "text/hf_folder/classes.hpp"
#include "text/hf_folder/file_set.hpp"
#include "text/pipeline/added_tokens.hpp"

namespace llmtrain {

inline constexpr size_t max_added_token_bytes = size_t{1} << 10;  ///< bytes of an added token

/// Function that returns the id of a token, -1 if there is none.
using FindToken = std::function<int32_t(std::string_view)>;

struct FolderTokens {
  struct Named {
    std::string key;  ///< eos_token ...; empty: it has no name
    AddedToken token;
    bool by_class = false;                      ///< True if no file names it and the tokenizer's class does
    bool is_text = true;                        ///< the file says no more than the text
    bool operator==(const Named& other) const;  ///< what Transformers takes for equal: the key does not count
  };
  std::map<int32_t, AddedToken> by_id;  ///< from added_tokens_decoder, otherwise from added_tokens.json
  std::string place;                    ///< source of by_id, for messages
  std::vector<Named> named;
  std::vector<Named> extra;  ///< extra_special_tokens, additional_special_tokens
  TokenizerClass::Named added_again = TokenizerClass::Named::once;

  /// Returns null if no file names it.
  const Named* find(std::string_view key) const;
};

/// If added_tokens_decoder is present, special_tokens_map.json and added_tokens.json are not read. `in_main` holds the
/// tokens that the main file adds. Throws UserError(bad_content).
FolderTokens read_folder_tokens(const TokenizerFileSet& set, const TokenizerClass& kind,
                                const std::vector<AddedToken>& in_main);

/// Adds them to `added`. A token that is already there takes over the flags and keeps its id; a token of the vocabulary
/// (of `size` tokens) has its id there; other tokens get the next ids, whatever id the file says, as in Transformers,
/// and a warning reports it.
void add_folder_tokens(const FolderTokens& tokens, const FindToken& in_vocabulary, int64_t size,
                       std::vector<AddedToken>& added, std::vector<std::string>& warnings);

/// Returns a tokenizer.json, which is valid JSON, with this list of added tokens; its other bytes stay as they are.
std::string replace_added_tokens(std::string_view tokenizer_json, const std::vector<AddedToken>& tokens);

/// Writes all added tokens of a tokenizer: into tokenizer.json where it has one, and into the added_tokens_decoder of
/// tokenizer_config.json where it has no tokenizer.json or the file has that list already. The set has a
/// tokenizer_config.json, unless it has a tokenizer.json. `pad_token` is named there; empty: none.
void write_added_tokens(TokenizerFileSet& set, const std::vector<AddedToken>& tokens, const std::string& pad_token);

}  // namespace llmtrain
