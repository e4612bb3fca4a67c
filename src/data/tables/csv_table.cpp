// Comma- or tab-separated values (RFC 4180): the first record is the names of the columns; fields between quotes may
// hold delimiters, line ends and doubled quotes; lines end with LF, CR LF or CR; blank lines and a byte order mark are
// skipped. A column without a name is "Unnamed: N", as pandas calls it.

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/utf8.hpp"
#include "data/files/jsonl.hpp"
#include "data/tables/table_file.hpp"

namespace llmtrain {
namespace {

constexpr size_t max_columns = 65'536;

/// Reads records one after the other.
class CsvRecords {
 public:
  CsvRecords(const std::string& path, char delimiter)
      : file_(FileHandle::open_to_read(path)), compression_(compression_of(file_)), delimiter_(delimiter) {
    constexpr int64_t any = int64_t{1} << 50;  // the lines of JSON are counted
    if (compression_ != Compression::none) {
      unpacked_ = std::make_unique<CompressedReader>(file_, compression_, any);
    }
    fill();
    if (buffer_.starts_with(byte_order_mark)) at_ = byte_order_mark.size();
    if (!next(names_)) throw UserError(ExitCode::bad_content, path + ": it has no header row");
    for (size_t i = 0; i < names_.size(); ++i) {
      if (names_[i].empty()) names_[i] = fmt::format("Unnamed: {}", i);
    }
    check_column_names(path, names_);
  }

  const std::vector<std::string>& names() const { return names_; }
  int64_t line() const { return record_line_; }
  int64_t position() const { return unpacked_ ? unpacked_->position() : read_; }

  /// Returns false at the end. All records have as many fields as there are names.
  bool next(std::vector<std::string>& fields) {
    do {
      if (peek() < 0) return false;
      record_line_ = line_;
      read_record(fields);
    } while (is_blank_);
    for (const std::string& field : fields) {
      if (find_invalid_utf8(field) != std::string::npos) {
        refuse(record_line_, "a field is not UTF-8 (convert the file, e.g. with iconv -t UTF-8)");
      }
    }
    if (names_.empty() || &fields == &names_ || fields.size() == names_.size()) return true;
    refuse(record_line_, fmt::format("the row has {} fields, and there are {} names of columns: a field with {} or a "
                                     "line end needs quotes around it",
                                     fields.size(), names_.size(), delimiter_ == '\t' ? "a tab" : "a comma"));
  }

 private:
  void read_record(std::vector<std::string>& fields) {
    fields.assign(1, "");
    int64_t quote_line = line_;
    bool quoted = false, closed = false;  // inside quotes, behind them
    is_blank_ = true;
    for (int64_t bytes = 0;; ++bytes) {
      if (bytes > default_row_limit) refuse(quote_line, "the row has more than 1 GiB: is a quote missing?");
      const int c = take();
      if (quoted) {
        if (c < 0) refuse(quote_line, "the quote that begins on this line has no end");
        const bool ends = c == '"' && peek() != '"';
        if (c == '"' && !ends) take();
        if (c == '\n') ++line_;
        if (!ends) fields.back() += static_cast<char>(c);
        quoted = !ends;
        closed = ends;
        continue;
      }
      if (c < 0 || c == '\n' || c == '\r') {
        if (c == '\r' && peek() == '\n') take();
        ++line_;
        return;
      }
      is_blank_ = false;
      if (c == delimiter_) {
        if (fields.size() == max_columns) refuse(line_, fmt::format("the row has more than {} fields", max_columns));
        fields.emplace_back();
        closed = false;
      } else if (c == '"' && fields.back().empty() && !closed) {
        quoted = true;
        quote_line = line_;
      } else if (closed) {
        refuse(line_, "text follows the quote that ends a field: inside quotes a quote is written twice");
      } else {
        fields.back() += static_cast<char>(c);
      }
    }
  }

  int peek() {
    if (at_ == buffer_.size()) fill();
    return at_ < buffer_.size() ? static_cast<unsigned char>(buffer_[at_]) : -1;
  }
  int take() {
    const int c = peek();
    if (c >= 0) ++at_;
    return c;
  }
  void fill() {
    constexpr int64_t block = int64_t{1} << 18;
    buffer_.resize(static_cast<size_t>(block));
    at_ = 0;
    const int64_t n =
        unpacked_ ? unpacked_->read(buffer_.data(), block) : file_.read_some(read_, block, buffer_.data());
    buffer_.resize(static_cast<size_t>(n));
    read_ += n;
  }
  [[noreturn]] void refuse(int64_t line, const std::string& what) const {
    throw UserError(ExitCode::bad_content, fmt::format("{}:{}: {}", file_.path(), line, what));
  }

  FileHandle file_;
  Compression compression_;
  std::unique_ptr<CompressedReader> unpacked_;
  char delimiter_;
  std::string buffer_;
  size_t at_ = 0;
  int64_t read_ = 0, line_ = 1, record_line_ = 1;
  bool is_blank_ = false;
  std::vector<std::string> names_;
};

/// Appends a number or a truth value; null for an empty field, and a text for others.
void append_value(const std::string& field, std::string& out) {
  const bool numeric = !field.empty() && (field[0] == '-' || (field[0] >= '0' && field[0] <= '9'));
  if (field.empty()) {
    out += "null";
  } else if (field == "true" || field == "True" || field == "TRUE") {
    out += "true";
  } else if (field == "false" || field == "False" || field == "FALSE") {
    out += "false";
  } else if (numeric && nlohmann::json::accept(field)) {
    out += field;
  } else {
    append_json_string(field, out);
  }
}

class CsvRows final : public TableReader {
 public:
  CsvRows(const std::string& path, char delimiter, const TableColumns& columns, int64_t limit)
      : TableReader(path, limit), records_(path, delimiter) {
    for (const std::string& name : records_.names()) {
      std::string& key = keys_.emplace_back();
      if (reads_column(columns, name)) append_json_string(name, key);
      is_value_.push_back(std::ranges::find(columns.values, name) != columns.values.end());
    }
  }
  int64_t position() const override { return records_.position(); }

 private:
  bool add_rows(std::string& lines) override {
    while (lines.size() < block_bytes && records_.next(fields_)) {
      char separator = '{';
      for (size_t i = 0; i < fields_.size(); ++i) {
        if (keys_[i].empty()) continue;
        lines += separator;
        lines += keys_[i] + ":";
        separator = ',';
        if (is_value_[i]) {
          append_value(fields_[i], lines);
        } else {
          append_json_string(fields_[i], lines);
        }
      }
      lines += separator == '{' ? "{}\n" : "}\n";
    }
    return !lines.empty();
  }

  CsvRecords records_;
  std::vector<std::string> keys_;  // as JSON; empty: not read
  std::vector<bool> is_value_;
  std::vector<std::string> fields_;
};

class CsvTable final : public TableFile {
 public:
  CsvTable(std::string path, char delimiter, TableColumns columns)
      : path_(std::move(path)), delimiter_(delimiter), columns_(std::move(columns)) {}

  int64_t groups() const override { return 1; }
  std::unique_ptr<TextReader> read(int64_t begin, int64_t end, int64_t limit) const override {
    LLMTRAIN_CHECK(begin == 0 && end == 1, "a file of text is one group");
    return std::make_unique<CsvRows>(path_, delimiter_, columns_, limit);
  }
  std::string place_of(int64_t row) const override {
    CsvRecords records(path_, delimiter_);
    std::vector<std::string> fields;
    while (row > 0 && records.next(fields)) --row;
    return fmt::format("{}:{}", path_, records.line());
  }

 private:
  std::string path_;
  char delimiter_;
  TableColumns columns_;
};

}  // namespace

std::unique_ptr<TableFile> open_csv_table(const std::string& path, char delimiter, const TableColumns& columns) {
  return std::make_unique<CsvTable>(path, delimiter, columns);
}

}  // namespace llmtrain
