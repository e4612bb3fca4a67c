#pragma once
// Settings in the files next to a tokenizer's main file, which change or describe the tokenizer.

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/files/added_token_files.hpp"
#include "text/files/tokenizer_class.hpp"
#include "text/files/tokenizer_file_set.hpp"
#include "text/pipeline/pipeline_tokenizer.hpp"

namespace llmtrain {

/// Folder of one tokenizer while it is read.
class TokenizerFolder {
 public:
  explicit TokenizerFolder(const TokenizerFileSet& set);

  /// Applies add_prefix_space to the document of a tokenizer.json.
  void change_prefix_space(nlohmann::json& tokenizer_json) const;
  /// Returns true if vocab.json and merges.txt put a space before the text. Throws UserError(bad_content) if the class
  /// of the tokenizer is not GPT-2's.
  bool gpt2_prefix_space() const;
  /// Returns true if every text between added tokens begins with a space, as the first one does (SentencePiece).
  bool prefixes_every_segment() const;

  /// Returns the tokens `added` by the main file together with those of the folder.
  std::vector<AddedToken> add_tokens(std::vector<AddedToken> added, const FindToken& in_vocabulary, int64_t size);

  /// Returns EOS, BOS and padding as the files name them: as text, otherwise as id; -1 if no file does. Includes the
  /// warnings of the reading, but no files.
  TokenizerOrigin named_ids(const FindToken& find, int64_t id_limit) const;

 private:
  const TokenizerFileSet& set_;
  const TokenizerClass* class_;
  std::optional<bool> add_prefix_space_;
  std::optional<bool> legacy_;
  FolderTokens tokens_;
  bool takes_tokens_ = false;  ///< True if the format supports tokens of the folder
  std::vector<std::string> warnings_;
};

/// Returns the first of these texts that is a token, -1 if none is.
int32_t first_token(const FindToken& find, std::initializer_list<std::string_view> texts);

}  // namespace llmtrain
