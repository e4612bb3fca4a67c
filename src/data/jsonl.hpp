#pragma once
// Rows of data, one JSON object a line. Pre-tokenized: {"input_ids": [...], "labels": [...]}; labels are optional,
// equal to input_ids or -100 where a token is not trained on as a target (as in Transformers: the shift by one happens
// later). Of text: {"text": "..."}, the column named by the deck. Other keys are ignored. Everything is bounded: length
// of a line, depth, keys of an object.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/file_handle.hpp"

namespace llmtrain {

inline constexpr int64_t longest_row = int64_t{16} << 20;  ///< bytes
inline constexpr size_t max_json_keys = 1000;              ///< of one object
inline constexpr int32_t largest_id = 0x7FFFFFFE;

std::string too_long_row();

/// What is wrong with a row; the byte is an offset in its line.
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
  std::vector<int32_t> labels;  ///< as many as ids when has_labels
  bool has_labels = false;
};
/// RowError when it is none.
void parse_token_row(std::string_view line, TokenRow& row);
/// The text in `column`, decoded to UTF-8; false when it is empty or null. RowError, also for a row that has input_ids.
bool parse_text_row(std::string_view line, const std::string& column, std::string& text);
/// Whether the row has input_ids; false for what is no row.
bool row_has_ids(std::string_view line);
/// A line of white space, which is no row.
bool is_blank(std::string_view line);

/// The lines that start in bytes [begin, end) of a file, in pieces of bounded memory. A line ends before '\n' or at the
/// end of the file; a '\r' before it belongs to the line end.
class LineReader {
 public:
  LineReader(const FileHandle& file, int64_t file_bytes, int64_t begin, int64_t end);
  /// False when there is no further line. `line` is valid until the next call.
  bool next(std::string_view& line);
  /// Of the line last returned, in the file.
  int64_t offset() const { return line_offset_; }

 private:
  bool fill();

  const FileHandle& file_;
  int64_t file_bytes_;
  int64_t end_;
  std::string buffer_;
  size_t position_ = 0;        // of the next line in the buffer
  int64_t buffer_offset_ = 0;  // of the buffer in the file
  int64_t line_offset_ = 0;
};

}  // namespace llmtrain
