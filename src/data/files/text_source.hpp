#pragma once
// Files of text and of rows: which ones, what they contain, and where their documents lie.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/files/content_hash.hpp"
#include "core/files/file_handle.hpp"
#include "data/files/compressed_file.hpp"
#include "parallel/communicator.hpp"

namespace llmtrain {

enum class InputKind : uint8_t { text, text_rows, token_rows, tokens };
/// Whether a tokenizer makes the tokens.
inline bool is_encoded(InputKind kind) { return kind == InputKind::text || kind == InputKind::text_rows; }

inline constexpr int64_t default_row_limit = int64_t{1} << 30;  ///< bytes
inline constexpr int64_t max_row_limit = int64_t{1} << 50;

/// How documents are found in files of text and of rows.
struct TextFormat {
  std::string separator;                  ///< between documents; empty: the file is one document
  std::string column = "text";            ///< of rows, that holds the text
  int64_t row_limit = default_row_limit;  ///< bytes of a row
  bool json_as_text = false;              ///< rows are known by the name alone, and a .json is a text, too
};

struct InputFile {
  std::string path;   ///< as people know it
  std::string name;   ///< that a token file keeps
  TextFormat format;  ///< the separator with the file's own line ends
  InputKind kind = InputKind::text;
  int64_t bytes = 0;
  int64_t modified = 0;    ///< when it was found, to notice a change while it is read
  int64_t text_begin = 0;  ///< bytes of the byte order mark at the start of a text
  Compression compression = Compression::none;
  std::string content_path = {};  ///< of a compressed file where its text is unpacked; bytes and modified are of that
  bool by_content = false;        ///< rows under a name that does not say so
  std::vector<std::string> notes = {};  ///< what people should know of how it is read; of the rank that looked
};

/// Files in the order of `patterns`, those of one pattern sorted by name. Kind by the ending of the name, in any case:
/// .h5 tokens; .jsonl, .ndjson, .jsonlines rows (of ids when the first one has input_ids, else of text). Files of other
/// names that hold rows are rows, too; everything else is text. Compressed files are known by their content, or by .gz
/// or .zst behind that. UserError for a pattern without a file, a file named twice, an empty or unreadable file, a
/// format that is known and not read. Where the first line of a text ends with CR LF, LF stands for that in its
/// separator.
std::vector<InputFile> find_input_files(const std::vector<std::string>& patterns, const TextFormat& format);

/// What the file contains, unpacked if need be; messages name the file that people know.
FileHandle open_content(const InputFile& file);

/// Bytes [begin, end) of a file.
struct FilePiece {
  size_t file;
  int64_t begin;
  int64_t end;
};
/// The files cut into pieces of 1 MiB, in order.
std::vector<FilePiece> cut_into_pieces(const std::vector<InputFile>& files);
void cut_into_pieces(size_t file, int64_t bytes, std::vector<FilePiece>& pieces);

struct DocumentPlace {
  size_t file;
  int64_t begin;
  int64_t end;
};

/// What one pass over all files finds. The same on every rank.
struct SourceScan {
  std::vector<Digest> digests;  ///< of each file
  // Of each file that a tokenizer encodes:
  std::vector<int64_t> characters;
  std::vector<int64_t> text_bytes;     ///< of rows those of the decoded text, else of the file
  std::vector<int64_t> skipped;        ///< empty documents
  std::vector<int64_t> first_skipped;  ///< byte in the file where the first empty row begins, -1: none

  std::vector<DocumentPlace> documents;  ///< of files of text, in order, none empty
  std::vector<char32_t> code_points;     ///< of all text, sorted
};
/// Collective. Reads every file once, all ranks and threads sharing the pieces: hash, UTF-8, characters, documents;
/// rows of text are parsed, of rows of ids the length of lines is checked. UserError with file, line and byte.
SourceScan scan_sources(const std::vector<InputFile>& files, Communicator& communicator,
                        const std::function<void(double)>& progress);

/// Refuses a file most of whose rows are empty: something else was meant.
void check_skipped_rows(const std::string& path, int64_t rows, int64_t skipped, std::string_view hint);

/// "file:line: byte N: what": the line is found by reading the file up to the byte.
[[noreturn]] void fail_at_byte(const FileHandle& file, int64_t offset, const std::string& what);
/// Number of the line that holds the byte, from 1.
int64_t line_of_byte(const FileHandle& file, int64_t offset);

}  // namespace llmtrain
