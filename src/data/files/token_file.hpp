#pragma once
// HDF5 token file: /tokens, /documents, optional /mask, /values and /rows, and attributes that describe the origin.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace llmtrain {

/// TokenFileInfo::column of prompts.
inline constexpr std::string_view prompt_column = "prompt";
/// TokenFileInfo::column of documents with a difficulty, and the role of its column in rows.
inline constexpr std::string_view difficulty_column = "difficulty";

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
  int64_t characters = 0;            ///< Unicode code points of the text, 0 = unknown
  int64_t bytes = 0;                 ///< bytes of the text, 0 = unknown
  int64_t skipped_documents = 0;     ///< number of empty documents
  RowCounts rows;                    ///< of instruction data
  int64_t group = 1;                 ///< consecutive documents that form a sample: 2 for pairs, chosen before rejected
  std::string column;                ///< meaning of /values: "label", "margin", "difficulty"; "prompt": there are /rows
  std::string tokenizer;             ///< Tokenizer::serialized(), empty for pre-tokenized input
  std::string tokenizer_hash;        ///< 16 hex digits
  std::string command;               ///< command that made the file
  std::vector<std::string> sources;  ///< "name size hash"

  bool has_prompts() const { return column == prompt_column; }
  bool has_values() const { return !column.empty() && !has_prompts(); }
  bool has_difficulties() const { return column == difficulty_column; }
  /// Meaning of the column of preference data and of prompts; empty for other documents.
  std::string group_column() const { return has_difficulties() ? std::string() : column; }
  /// True if samples are groups of documents (of one, for rows with a label and for prompts).
  bool has_groups() const { return group > 1 || !group_column().empty(); }
};

/// Read access by range; immutable, so threads can share one. A view of a range of documents or tokens is also a
/// TokenFile.
class TokenFile {
 public:
  virtual ~TokenFile() = default;
  virtual const TokenFileInfo& info() const = 0;
  virtual int64_t tokens() const = 0;
  /// Offsets of documents: n + 1 ascending entries, the first 0, the last tokens().
  virtual std::span<const uint64_t> documents() const = 0;
  /// Throws UserError(bad_content) for an id outside the vocabulary, UserError(io) if the file cannot be read.
  virtual void read(int64_t begin, int64_t count, int32_t* ids) const = 0;
  /// Values of the documents, as info().column names them; empty if it is.
  virtual std::span<const float> values() const { return {}; }
  /// Reads what is stored of a prompt's row (StoredRow). Empty if the documents are not prompts.
  virtual std::string row_text(int64_t document) const;
  /// Reads the mask: 1 = trained on; all ones without a mask.
  virtual void read_mask(int64_t begin, int64_t count, uint8_t* mask) const = 0;
};

/// The row of a prompt: its other columns, JSON text of an object on one line, and where it came from: the name of the
/// file and the offset of the row in its text. Files of earlier versions lack the origin.
struct StoredRow {
  std::string columns, name;
  int64_t offset = -1;  ///< -1: unknown

  std::string text() const;
  static StoredRow parse(std::string_view text);
};

/// Opens a file and validates it (links, storage, sizes, types, ascending offsets) before it allocates by its sizes;
/// reading compares ids with the vocabulary. A positive `rows` limits the vocabulary, whatever the file says. Main
/// thread only. Throws UserError(bad_content / missing_input).
std::shared_ptr<const TokenFile> open_token_file(const std::string& path, int64_t rows = 0);

/// Splits off the last fraction of the tokens (the border is floor(tokens * (1 - fraction))); a document that the
/// border cuts becomes two, unless there are rows of instruction data: then the border moves back to the start of a
/// document, of pairs to the start of one.
struct SplitTokens {
  std::shared_ptr<const TokenFile> train;
  std::shared_ptr<const TokenFile> validation;  ///< null if empty
};
SplitTokens split_tokens(std::shared_ptr<const TokenFile> file, double validation_fraction);

/// A view of the documents with at least this many tokens, or of the pairs of such documents. Throws
/// UserError(bad_content) if there are none.
std::shared_ptr<const TokenFile> without_short_documents(std::shared_ptr<const TokenFile> file, int64_t min_length);

/// Returns a hash of sizes, tokenizer, and ids and mask at many positions. For a file that is too large to be read
/// completely, it detects other content, but not damage.
std::string content_of_tokens(const TokenFile& file);

/// Joins several files; they must agree on vocabulary, EOS and tokenizer, and on group and column. Difficulties that
/// some of them lack are left out.
std::shared_ptr<const TokenFile> concatenate_tokens(std::vector<std::shared_ptr<const TokenFile>> files);

}  // namespace llmtrain
