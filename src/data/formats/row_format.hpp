#pragma once
// Formats of instruction data: the columns of a row of JSON, and the InstructionRow that it becomes. To add a format,
// add its name to this list and src/data/formats/<name>.cpp with its RowFormat.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/files/json_node.hpp"
#include "data/files/text_source.hpp"
#include "data/files/token_file.hpp"
#include "text/chat/conversation.hpp"

/// In the order in which a row is compared with them.
#define LLMTRAIN_ROW_FORMATS(X) \
  X(preference)                 \
  X(unpaired)                   \
  X(messages) X(sharegpt) X(prompt_completion) X(alpaca) X(prompt) X(text) X(classification) X(token_classification)

namespace llmtrain {

class RowView;

/// A value of a row (or of each of its messages) as data.columns names it, and the columns where it usually is.
struct RowRole {
  std::string_view name;
  std::array<std::string_view, 4> columns;  ///< the first one that a row has; all but the first may be empty
  /// A usual column is one that messages name, although rows can have others in its place.
  enum class Place : uint8_t { required, usual, optional, in_message } place = Place::optional;
};

/// The role of a row's difficulty, which is read only where a column is named for it.
inline constexpr RowRole difficulty_role = {difficulty_column, {difficulty_column}};

/// The labels of a row, whose documents are a text, or two, or a conversation, or words.
struct LabelledRow {
  nlohmann::ordered_json labels = nullptr;  ///< null: it has none
  std::string column;                       ///< of the labels
  bool words = false;
};

/// The documents of a row: one, or the chosen and the rejected one of a pair.
struct RowDocuments {
  std::vector<InstructionRow> documents;
  float value = 0;  ///< of preference data: 1 or 0 for a label, or the margin of a pair; of others: the difficulty
  std::optional<std::string> columns = {};   ///< of a prompt: the other columns of the row, a JSON object
  std::string left_out = {};                 ///< why the row is left out, without documents; empty: it is not
  std::optional<LabelledRow> labelled = {};  ///< of formats of labels
  bool is_prompt() const { return columns.has_value(); }
};

/// A row that is left out and counted; the message says why.
class LeftOutRow : public UserError {
 public:
  explicit LeftOutRow(const std::string& why) : UserError(ExitCode::bad_content, why) {}
};

struct RowFormat {
  std::string_view name;
  std::span<const RowRole> roles;
  /// Tells rows of this format from others with the same columns; null: its required columns are enough.
  bool (*fits)(const RowView& row);
  /// Throws UserError(bad_content) that says what is wrong, without file and line.
  InstructionRow (*read)(const RowView& row);
  // Formats of preference data, of prompts and of labels have these in place of read:
  RowDocuments (*read_preference)(const RowView& row) = nullptr;
  int64_t group = 1;             ///< documents of a row, as TokenFileInfo::group
  std::string_view column = {};  ///< meaning of RowDocuments::value, as TokenFileInfo::column

  bool is_preference() const { return read_preference != nullptr; }
  const RowRole* find(std::string_view role) const;
};

/// data.columns: names of columns other than the usual ones, by role.
using ColumnNames = std::vector<std::pair<std::string, std::string>>;

/// A row of JSON whose values are found by their roles.
class RowView {
 public:
  /// `templated`: a chat template renders the row, so that it may be a conversation.
  RowView(const RowFormat& format, const ColumnNames& columns, const nlohmann::ordered_json& row, bool templated)
      : format_(format), columns_(columns), row_(row, ""), templated_(templated) {}

  bool templated() const { return templated_; }
  /// True if the format has the role, and the row its column, which is not null.
  bool has(std::string_view role) const;
  /// True if data.columns names the column of a role.
  bool names(std::string_view role) const;
  /// The column of a role; the first usual one if the row has none.
  std::string column(std::string_view role) const { return column_of(row_, role); }
  /// Like at() for a column that the row has; the column does not count as read.
  const nlohmann::ordered_json& peek(std::string_view role) const { return row_.value().at(column(role)); }
  /// Refuses the row if it has no such column.
  OrderedJsonNode at(std::string_view role) const;
  /// Returns a text; empty if the column is missing or null.
  std::string text_or_empty(std::string_view role) const;
  /// Names of columns with a text that at() did not read and `texts` does not hold.
  std::vector<std::string> unread_texts(std::string_view texts) const;
  /// Returns the columns that have no role in the format, as JSON text of an object.
  std::string other_columns() const;
  /// The key of a role in one of the row's messages.
  std::string key_in(const OrderedJsonNode& message, std::string_view role) const;
  [[noreturn]] void refuse(const std::string& what) const { row_.refuse(what); }

 private:
  std::string column_of(const OrderedJsonNode& object, std::string_view role) const;

  const RowFormat& format_;
  const ColumnNames& columns_;
  OrderedJsonNode row_;
  bool templated_;
  mutable std::vector<std::string> read_;  // columns that at() has read
};

/// Says why a task does not take documents of this group and column, and what to do; empty: it takes them.
std::string refused_use(DataUse use, int64_t group, std::string_view column);
/// Returns the format of preference data, of prompts or of labels that all files have, or null. Throws
/// UserError(bad_content) if some have one, and others have none or another.
const RowFormat* common_preference_format(const std::vector<InputFile>& files);

std::span<const RowFormat* const> row_formats();
/// Null if there is none of this name.
const RowFormat* find_row_format(std::string_view name);
/// Splits data.columns, "role:column" each. `format`: auto or the name of a format, which must have the roles. Throws
/// UserError(deck).
ColumnNames parse_columns(const std::vector<std::string>& entries, std::string_view format);
/// The column that data.columns names for a role; empty: none.
std::string named_column(const std::vector<std::string>& entries, std::string_view role);

/// Recognises the format of a file by its first rows: the one that the first row fits, with all roles that the deck
/// names. Rows of text may have the columns of any format, and are of it.
class FormatRecognition {
 public:
  /// A `format` other than auto is known without rows.
  FormatRecognition(std::string_view format, const std::vector<std::string>& columns);

  /// Examines the next row. Throws UserError(bad_content), without the place of the row, if it fits several formats, or
  /// the first row fits none; or if this row is of another format than the first.
  void add(std::string_view row);
  bool wants_more() const { return rows_ < max_rows; }
  const std::string& format() const { return format_; }
  /// Names the columns of text in these rows that the format does not read; empty if there are none.
  std::string unread_columns() const;

 private:
  static constexpr int max_rows = 10;
  void recognise(std::string_view row);

  std::string format_;
  bool automatic_;
  std::vector<std::string> entries_;  // data.columns
  std::vector<std::string> unread_;   // columns of text
  ColumnNames columns_;
  int rows_ = 0;
};

/// All texts of a row, one after the other.
std::string texts_of(const InstructionRow& row);
std::string texts_of(const RowDocuments& row);

/// True for a prompt without any completion: an empty text, or messages without content and calls of tools.
bool has_empty_completion(const InstructionRow& row);

/// Reads rows of one format.
class RowReader {
 public:
  RowReader(std::string_view format, const std::vector<std::string>& columns, bool templated);

  /// Throws RowError for a line that is not a JSON object, UserError(bad_content) for a row of another shape. A row
  /// that is left out has no documents.
  RowDocuments read_documents(std::string_view line) const;
  /// Returns the columns of text in a row that the format does not read. Throws as read_documents() does.
  std::vector<std::string> unread_texts(std::string_view line) const;
  /// True if rows have a difficulty: a column is named for it.
  bool has_difficulties() const;
  /// Reads the difficulty of a row alone. Throws as read_documents() does.
  float read_difficulty(std::string_view line) const;

 private:
  RowDocuments read_row(const RowView& row) const;

  const RowFormat* format_;
  ColumnNames columns_;
  bool templated_;
};

}  // namespace llmtrain
