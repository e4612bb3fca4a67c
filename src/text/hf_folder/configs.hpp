#pragma once
// Settings in the files next to a tokenizer's main file, which change or describe the tokenizer.
// Steps that a tokenizer class of Transformers makes itself; they replace those of tokenizer.json.

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/files/json_node.hpp"
#include "text/hf_folder/added_tokens.hpp"
#include "text/hf_folder/classes.hpp"
#include "text/hf_folder/file_set.hpp"
#include "text/pipeline/pipeline_tokenizer.hpp"

namespace llmtrain {

/// Folder of one tokenizer while it is read.
class TokenizerFolder {
 public:
  /// `stored_class`: the tokenizer class, where it was found before; else empty.
  TokenizerFolder(const TokenizerFileSet& set, const std::string& stored_class);

  /// Puts the steps of the folder's tokenizer class into the document of a tokenizer.json. UserError(bad_content).
  void rebuild(nlohmann::json& document);
  /// Sets the special tokens around a text, where the class does; after add_tokens.
  void set_post_processor(PostProcessor& post);
  /// Returns true if vocab.json and merges.txt put a space before the text. Throws UserError(bad_content) if the class
  /// of the tokenizer is not GPT-2's.
  bool gpt2_prefix_space() const;
  /// Returns true if every text between added tokens begins with a space, as the first one does (SentencePiece).
  bool prefixes_every_segment() const;

  /// Returns the tokens `added` by the main file together with those of the folder.
  std::vector<AddedToken> add_tokens(std::vector<AddedToken> added, const FindToken& in_vocabulary, int64_t size);

  /// Returns EOS, BOS and padding as the files name them: as text, otherwise as id; -1 if no file does. Includes the
  /// warnings of the reading, but no files and no class.
  TokenizerOrigin named_ids(const FindToken& find, int64_t id_limit) const;
  /// Returns true if tokenizer_config.json says that there is no such token: "bos_token": null.
  bool names_no(const std::string& key) const;
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
  bool takes_tokens_ = false;  ///< True if the format supports tokens of the folder
  std::vector<std::string> warnings_;
};

/// Returns the first of these texts that is a token, -1 if none is.
int32_t first_token(const FindToken& find, std::initializer_list<std::string_view> texts);

/// Returns the values of TokenizerClass::settings: from tokenizer_config.json (`config`), otherwise from the class.
/// Throws UserError(bad_content).
nlohmann::json read_class_settings(const TokenizerClass& kind, const JsonNode& config);

/// Replaces the model's flags, the normalizer, the pre_tokenizer and the decoder of the document; returns the names of
/// those that differed. `document` is tokenizer.json, named `where`. Throws UserError(bad_content).
std::vector<std::string> rebuild_steps(const TokenizerClass& kind, const nlohmann::json& settings,
                                       const std::string& where, nlohmann::json& document);

}  // namespace llmtrain
