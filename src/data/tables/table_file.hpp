#pragma once
// Tables read as lines of JSON, an object for each row: Parquet, Arrow (files, Feather and streams), CSV and TSV with a
// header of names. What reads lines of JSON reads tables through them. Lists and structs become lists and objects; a
// null is null in a column, and a field of a struct that is null is left out; times and decimal numbers become texts.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/files/compressed_file.hpp"
#include "data/files/text_reader.hpp"

namespace llmtrain {

enum class TableKind : uint8_t { none, parquet, arrow, csv, tsv };

/// Columns of a table that are read.
struct TableColumns {
  std::vector<std::string> read = {};  ///< by name; empty: all of them
  /// CSV and TSV do not say which fields are texts: all are, but numbers and truth values in these columns. So are
  /// decimal numbers of Parquet and Arrow.
  std::vector<std::string> values = {};
  bool skips_binary = false;  ///< True where the columns are only looked at: bytes that are not a text are null
};

/// Tells by the first bytes, otherwise by the ending of the name. Throws UserError(bad_content) for a file whose name
/// is that of a table and its content is not, or is of a form that is not read.
TableKind table_of(const FileHandle& file, Compression compression);
/// The same of a path; none if it cannot be opened.
TableKind table_of(const std::string& path);

/// A table whose groups of rows (row groups of Parquet, batches of Arrow) can be read apart. Errors name the file and
/// the group, or the line.
class TableFile {
 public:
  virtual ~TableFile() = default;
  virtual int64_t groups() const = 0;
  /// Reads the groups [begin, end) in bounded memory. More than `limit` bytes of text are refused.
  virtual std::unique_ptr<TextReader> read(int64_t begin, int64_t end, int64_t limit) const = 0;
  /// Place of a row, counted from 1: "file:17 (row group 2 of 3)", of CSV the line "file:21".
  virtual std::string place_of(int64_t row) const = 0;
};

/// Throws UserError(bad_content) for a broken file, and for columns of the same name.
std::unique_ptr<TableFile> open_table(const std::string& path, TableKind kind, const TableColumns& columns);

// For the kinds of tables:

std::unique_ptr<TableFile> open_csv_table(const std::string& path, char delimiter, const TableColumns& columns);
/// Parquet and Arrow. Without Apache Arrow's library it throws UserError(bad_content) that says how to get it.
std::unique_ptr<TableFile> open_arrow_table(const std::string& path, TableKind kind, const TableColumns& columns);

/// Lines that a derived class makes, some at once.
class TableReader : public TextReader {
 public:
  int64_t read(char* data, int64_t count) final;

 protected:
  static constexpr size_t block_bytes = size_t{1} << 18;

  TableReader(std::string path, int64_t limit) : path_(std::move(path)), limit_(limit) {}
  const std::string& path() const { return path_; }
  /// Appends lines; returns false at the end.
  virtual bool add_rows(std::string& lines) = 0;

 private:
  std::string path_;
  int64_t limit_, given_ = 0;
  std::string lines_;
  size_t used_ = 0;
};

/// Throws UserError(bad_content) for a name that appears twice.
void check_column_names(const std::string& path, const std::vector<std::string>& names);
/// Returns true for a column that is read.
bool reads_column(const TableColumns& columns, const std::string& name);
/// Appends a JSON string; `text` is UTF-8.
void append_json_string(std::string_view text, std::string& out);

}  // namespace llmtrain
