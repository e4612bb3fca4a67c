#pragma once
// What the files beside a tokenizer's main one change of it and say of it.

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/files/added_token_files.hpp"
#include "text/files/tokenizer_class.hpp"
#include "text/files/tokenizer_file_set.hpp"
#include "text/pipeline/pipeline_tokenizer.hpp"

namespace llmtrain {

/// The folder of one tokenizer, while it is read.
class TokenizerFolder {
 public:
  /// `stored_class`: the tokenizer class, where it was found before; else empty.
  TokenizerFolder(const TokenizerFileSet& set, const std::string& stored_class);

  /// Puts the steps of the folder's tokenizer class into the document of a tokenizer.json. UserError(bad_content).
  void rebuild(nlohmann::json& document);
  /// Sets the special tokens around a text, where the class does; after add_tokens.
  void set_post_processor(PostProcessor& post);
  /// Whether vocab.json and merges.txt have a space before the text. UserError(bad_content) when the class of the
  /// tokenizer is not GPT-2's.
  bool gpt2_prefix_space() const;
  /// Whether every text between added tokens begins with a space, as the first does (SentencePiece).
  bool prefixes_every_part() const;

  /// `added`: the tokens that the main file adds. Returns them with those of the folder.
  std::vector<AddedToken> add_tokens(std::vector<AddedToken> added, const FindToken& in_vocabulary, int64_t size);

  /// EOS, BOS and padding as the files name them: as text, else as id; -1 where none does. The warnings of what was
  /// read; no files, and no class.
  TokenizerOrigin named_ids(const FindToken& find, int64_t id_limit) const;
  void put_class(TokenizerOrigin& origin) const;

 private:
  void find_class(const std::string& stored_class);

  const TokenizerFileSet& set_;
  const TokenizerClass* class_;
  std::string class_name_;  ///< as the folder says; empty: tokenizer.json alone counts
  bool class_is_stored_ = false;
  std::vector<std::string> changed_;  ///< names of steps that are the class's, not the file's
  bool trims_ = false;
  bool splits_special_ = false;
  std::unordered_map<std::string, int32_t> ids_of_added_;
  std::optional<bool> add_prefix_space_;
  std::optional<bool> legacy_;
  FolderTokens tokens_;
  bool takes_tokens_ = false;  ///< the format has a place for tokens of the folder
  std::vector<std::string> warnings_;
};

/// The first of these texts that is a token; -1: none is.
int32_t first_token(const FindToken& find, std::initializer_list<std::string_view> texts);

}  // namespace llmtrain
