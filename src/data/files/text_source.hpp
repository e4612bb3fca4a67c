#pragma once
// Files of text and of rows: their paths, content and documents.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/files/content_hash.hpp"
#include "core/files/file_handle.hpp"
#include "data/files/compressed_file.hpp"
#include "data/tables/table_file.hpp"
#include "parallel/communicator.hpp"

namespace llmtrain {

enum class InputKind : uint8_t { text, text_rows, instruction_rows, token_rows, tokens };
/// Returns true if a tokenizer makes the tokens.
inline bool is_encoded(InputKind kind) { return kind <= InputKind::instruction_rows; }

inline constexpr int64_t default_row_limit = int64_t{1} << 30;  ///< bytes
inline constexpr int64_t max_row_limit = int64_t{1} << 50;

/// Data that a task takes: texts and conversations, preference data (pairs, or rows with a label), pairs alone, texts
/// with labels, or prompts.
enum class DataUse : uint8_t { any, training, preferences, pairs, labels, prompts };

/// Rules for finding documents in files of text and of rows.
struct TextFormat {
  std::string separator;                  ///< between documents; empty: the file is one document
  std::string column = "text";            ///< column of the text in rows
  int64_t row_limit = default_row_limit;  ///< bytes per row
  bool json_as_text = false;              ///< True if only the name identifies rows, and a .json is a text, too
  /// Format of rows (data/formats). auto: its first rows tell; in a file that was found it is the format.
  std::string row_format = "text";
  std::vector<std::string> columns = {};  ///< role:column; in rows of text, that of the difficulty
  DataUse use = DataUse::any;             ///< rows of another use are refused
};

struct InputFile {
  std::string path;   ///< as shown to the user
  std::string name;   ///< as stored in a token file
  TextFormat format;  ///< with the separator in the file's own line ends
  InputKind kind = InputKind::text;
  int64_t bytes = 0;
  int64_t modified = 0;    ///< modification time, which detects a change during reading
  int64_t text_begin = 0;  ///< length of the byte order mark at the start of a text
  Compression compression = Compression::none;
  TableKind table = TableKind::none;
  TableColumns columns = {};            ///< of a table
  std::string content_path = {};        ///< unpacked text, or rows of a table; bytes and modified refer to it
  bool by_content = false;              ///< True if the content, not the name, identifies rows
  std::vector<std::string> notes = {};  ///< notes for the user on how it is read; on the rank that looked

  /// True if its text must be made: it is compressed, or a table.
  bool is_packed() const { return compression != Compression::none || table != TableKind::none; }
};

/// Opens the file's content, unpacked if necessary; messages name the original file.
FileHandle open_content(const InputFile& file);
/// Reads the text of a packed file, which `file` is; more than `limit` bytes are refused.
std::unique_ptr<TextReader> open_packed(const FileHandle& file, const InputFile& input, int64_t limit);

/// Bytes [begin, end) of a file.
struct FilePiece {
  size_t file;
  int64_t begin;
  int64_t end;
};
/// Divides the files into pieces of 1 MiB, in order.
std::vector<FilePiece> cut_into_pieces(const std::vector<InputFile>& files);
void cut_into_pieces(size_t file, int64_t bytes, std::vector<FilePiece>& pieces);

struct DocumentRange {
  size_t file;
  int64_t begin;
  int64_t end;
};

/// Result of one pass over all files. The same on every rank.
struct SourceScan {
  std::vector<Digest> digests;  ///< per file
  // For each file that a tokenizer encodes:
  std::vector<int64_t> characters;
  std::vector<int64_t> text_bytes;     ///< for rows the bytes of the decoded text, otherwise of the file
  std::vector<int64_t> skipped;        ///< number of empty documents
  std::vector<int64_t> first_skipped;  ///< offset of the first empty row in the file, -1: none

  std::vector<std::vector<int64_t>> rows_before;  ///< per file and piece: rows that begin before it

  std::vector<DocumentRange> documents;  ///< non-empty documents of text files, in order
  std::vector<char32_t> code_points;     ///< distinct code points of all text, sorted
};
/// Collective. Reads every file once; all ranks and threads share the pieces: hash, UTF-8, characters, documents. Rows
/// of text are parsed; of rows of ids the length of lines is checked. Throws UserError with file, line and byte.
SourceScan scan_sources(const std::vector<InputFile>& files, Communicator& communicator,
                        const std::function<void(double)>& progress);

/// The section of a scan that belongs to files [first, first + count).
SourceScan section_of(const SourceScan& scan, size_t first, size_t count);

/// Refuses a file if most of its rows are empty, since this is probably a mistake.
void check_skipped_rows(const std::string& path, int64_t rows, int64_t skipped, std::string_view hint);

/// Throws UserError "file:line: what" for the row that begins at `offset`.
[[noreturn]] void fail_in_row(const FileHandle& file, int64_t offset, const std::string& what);
/// Throws UserError "file:line: byte N: what"; finds the line by reading the file up to the byte.
[[noreturn]] void fail_at_byte(const FileHandle& file, int64_t offset, const std::string& what);
/// Returns the number of the line that holds the byte, from 1.
int64_t line_of_byte(const FileHandle& file, int64_t offset);
/// Returns "file:line"; of a table whose row has this number its place, such as "file:17 (row group 2 of 3)".
std::string place_of_line(const std::string& path, int64_t line);

}  // namespace llmtrain
