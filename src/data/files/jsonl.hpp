#pragma once
// Rows of data, one JSON object per line. Pre-tokenized rows: {"input_ids": [...], "attention_mask": [...], "labels":
// [...]}. A token whose entry in attention_mask is 0 is padding and omitted from the row. Labels equal input_ids, or
// are -100 if a token is not trained on as a target (as in Transformers: the shift by one happens later). Without
// labels "completion_mask" and "assistant_masks" say it: a token is trained on where all of them are 1, as in TRL. All
// are optional. Rows of text: {"text": "..."}; the deck names the column. Other keys are ignored. Everything is
// bounded: length of a line, depth, keys of an object.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/files/file_handle.hpp"
#include "data/files/text_source.hpp"

namespace llmtrain {

inline constexpr size_t max_json_keys = 1000;  ///< keys per object
inline constexpr int32_t max_id = 0x7FFFFFFE;
inline constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
inline constexpr int64_t row_margin = 4;  ///< bytes besides the row on its line: a byte order mark, a carriage return

/// Describes the problem of a row of this many bytes and the remedy. `counted` false: the row is longer still.
std::string too_long_row(int64_t bytes, int64_t limit, bool counted = true);

/// Error in a row; the byte is an offset in its line.
class RowError : public UserError {
 public:
  RowError(size_t byte, const std::string& reason);
  size_t byte() const { return byte_; }
  const std::string& reason() const { return reason_; }

 private:
  size_t byte_;
  std::string reason_;
};

struct TokenRow {
  std::vector<int32_t> ids;
  std::vector<int32_t> labels;  ///< as many as ids if has_labels; also where masks take their place
  bool has_labels = false;
  int64_t padding = 0;  ///< tokens that attention_mask omits
};
/// Throws RowError if the line is not a row of ids.
void parse_token_row(std::string_view line, TokenRow& row);
/// Returns the text in `column`, decoded to UTF-8; false if it is empty or null. Throws RowError, also for a row with
/// input_ids.
bool parse_text_row(std::string_view line, const std::string& column, std::string& text);
/// Returns the whole row, its keys in their order. Throws RowError.
nlohmann::ordered_json parse_json_row(std::string_view line);
/// RowError when the line is not a JSON object.
void check_row(std::string_view line);
/// The keys of a row; none if it is not a row.
std::vector<std::string> row_keys(std::string_view line);
/// Returns true for a line of white space, which is not a row. The line end may be present.
bool is_blank(std::string_view line);

/// The lines that start in bytes [begin, end) of a file, read in bounded memory. A line ends before '\n' or at the end
/// of the file; a '\r' before it belongs to the line end, and a byte order mark at the beginning of the file belongs to
/// no line.
class LineReader {
 public:
  /// Throws UserError(bad_content) for a line of more than `limit` bytes.
  LineReader(const FileHandle& file, int64_t file_bytes, int64_t begin, int64_t end, int64_t limit = default_row_limit);
  /// Returns false if there is no further line. `line` is valid until the next call.
  bool next(std::string_view& line);
  /// Returns the offset in the file of the last line that was returned.
  int64_t offset() const { return line_offset_; }

 private:
  bool fill();

  const FileHandle& file_;
  int64_t file_bytes_;
  int64_t end_;
  int64_t limit_;
  std::string buffer_;
  size_t position_ = 0;        // begin of the next line in the buffer
  int64_t buffer_offset_ = 0;  // offset of the buffer in the file
  int64_t line_offset_ = 0;
};

/// Refuses the row that begins at `begin`, in bounded time.
[[noreturn]] void refuse_long_row(const FileHandle& file, int64_t begin, int64_t limit);

}  // namespace llmtrain
