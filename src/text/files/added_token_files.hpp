#pragma once
// What the files of a tokenizer's folder say of tokens beside the main file, read as Transformers' AutoTokenizer reads
// them: which tokens are added, in which order, with which flags, and which of them have a name (eos_token ...).

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "text/files/tokenizer_class.hpp"
#include "text/files/tokenizer_file_set.hpp"
#include "text/pipeline/added_tokens.hpp"

namespace llmtrain {

/// The id of a token, -1 for none.
using FindToken = std::function<int32_t(std::string_view)>;

struct FolderTokens {
  struct Named {
    std::string key;  ///< eos_token ...; empty: it has no name
    AddedToken token;
    bool by_class = false;                      ///< no file names it: the tokenizer's class does
    bool is_text = true;                        ///< the file says no more than the text
    bool operator==(const Named& other) const;  ///< what Transformers takes for equal: the key does not count
  };
  std::map<int32_t, AddedToken> by_id;  ///< added_tokens_decoder, else added_tokens.json
  std::string place;                    ///< of by_id, for messages
  std::vector<Named> named;
  std::vector<Named> extra;  ///< extra_special_tokens, additional_special_tokens
  TokenizerClass::Named added_again = TokenizerClass::Named::once;

  /// Null when nothing names it.
  const Named* find(std::string_view key) const;
};

/// Where added_tokens_decoder is there, special_tokens_map.json and added_tokens.json are not read. `in_main`: the
/// tokens that the main file adds. UserError(bad_content).
FolderTokens read_folder_tokens(const TokenizerFileSet& set, const TokenizerClass& kind,
                                const std::vector<AddedToken>& in_main);

/// Adds them to `added`. A token that is there takes over the flags and keeps its id; one of the vocabulary, of `size`
/// tokens, has its id there; others get the next ids, whatever id the file says, as in Transformers: a warning says so.
void add_folder_tokens(const FolderTokens& tokens, const FindToken& in_vocabulary, int64_t size,
                       std::vector<AddedToken>& added, std::vector<std::string>& warnings);

}  // namespace llmtrain
