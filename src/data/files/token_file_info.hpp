#pragma once
// Facts that a token file stores about its documents.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace llmtrain {

/// TokenFileInfo::column of prompts.
inline constexpr std::string_view prompt_column = "prompt";
/// TokenFileInfo::column of documents with a difficulty, and the role of its column in rows.
inline constexpr std::string_view difficulty_column = "difficulty";

/// TokenFileInfo::column of texts with labels, and of texts whose tokens have labels (-1: none).
inline constexpr std::string_view labels_column = "labels", token_labels_column = "token_labels";

/// Rows of instruction data; all 0 for other data.
struct RowCounts {
  int64_t used = 0;            ///< documents that are rows of instruction data
  int64_t untrained = 0;       ///< rows without a token to train on, which were left out
  int64_t duplicates = 0;      ///< used rows with the tokens and mask of an earlier one
  int64_t merged_borders = 0;  ///< used rows where the border of prompt and completion lies inside a token
  int64_t without_stop = 0;    ///< used rows whose last trained token does not end the generation
  // Rows of preference data that were left out:
  int64_t equal = 0;             ///< pairs of two equal answers
  int64_t empty = 0;             ///< rows with an empty answer
  std::string first_equal = {};  ///< "file:line" of the first of these pairs
  std::string first_empty = {};
  int64_t irregular = 0;             ///< rows whose turns do not alternate, which were left out
  std::string first_irregular = {};  ///< "file:line: why" of the first of them

  int64_t left_out() const { return untrained + equal + empty + irregular; }
  RowCounts& operator+=(const RowCounts& other);
};

/// Attributes of a token file; members have the attributes' names.
struct TokenFileInfo {
  std::string path;
  int64_t tokens = 0;
  int64_t documents = 0;
  int64_t vocabulary_size = 0;
  int32_t eos_id = -1;  ///< -1: documents have no EOS (pre-tokenized input)
  bool has_mask = false;
  int64_t characters = 0;         ///< Unicode code points of the text, 0 = unknown
  int64_t bytes = 0;              ///< bytes of the text, 0 = unknown
  int64_t skipped_documents = 0;  ///< number of empty documents
  RowCounts rows;                 ///< of instruction data
  int64_t group = 1;              ///< consecutive documents that form a sample: 2 for pairs, chosen before rejected
  /// Meaning of /values: "label", "margin", "difficulty", "labels", "token_labels"; "prompt": there are /rows.
  std::string column;
  int64_t width = 1;                 ///< of /values: those of a document, or of a token ("token_labels")
  std::string tokenizer;             ///< Tokenizer::serialized(), empty for pre-tokenized input
  std::string tokenizer_hash;        ///< 16 hex digits
  std::string command;               ///< command that made the file
  std::vector<std::string> sources;  ///< "name size hash"

  bool has_prompts() const { return column == prompt_column; }
  bool has_values() const { return !column.empty() && !has_prompts(); }
  bool has_difficulties() const { return column == difficulty_column; }
  bool has_token_labels() const { return column == token_labels_column; }
  bool has_labels() const { return column == labels_column || has_token_labels(); }
  /// Meaning of the column of preference data and of prompts; empty for other documents.
  std::string group_column() const { return has_difficulties() ? std::string() : column; }
  /// True if samples are groups of documents (of one, for rows with a label and for prompts).
  bool has_groups() const { return group > 1 || !group_column().empty(); }
};

}  // namespace llmtrain
