#pragma once
// Files of text and of rows: which ones, what they contain, and where their documents lie.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/content_hash.hpp"
#include "core/file_handle.hpp"
#include "parallel/communicator.hpp"

namespace llmtrain {

enum class InputKind : uint8_t { text, rows, tokens };

struct InputFile {
  std::string path;
  std::string name;       ///< that a token file keeps
  std::string separator;  ///< between documents, with the file's own line ends; empty: the file is one document
  InputKind kind = InputKind::text;
  int64_t bytes = 0;
  int64_t modified = 0;    ///< when it was found, to notice a change while it is read
  int64_t text_begin = 0;  ///< bytes of the byte order mark at the start of a text
};

/// Files in the order of `patterns`, those of one pattern sorted by name. Kind by ending: .h5 tokens, .jsonl rows,
/// everything else text. UserError for a pattern without a file, a file named twice, an empty or unreadable file.
/// Where the first line of a text ends with CR LF, LF stands for that in its separator.
std::vector<InputFile> find_input_files(const std::vector<std::string>& patterns, const std::string& separator);

/// Bytes [begin, end) of a file.
struct FilePiece {
  size_t file;
  int64_t begin;
  int64_t end;
};
/// The files cut into pieces of 1 MiB, in order.
std::vector<FilePiece> cut_into_pieces(const std::vector<InputFile>& files);

struct DocumentPlace {
  size_t file;
  int64_t begin;
  int64_t end;
};

/// What one pass over all files finds. The same on every rank.
struct SourceScan {
  std::vector<Digest> digests;           ///< of each file
  std::vector<int64_t> characters;       ///< of each file of text
  std::vector<int64_t> skipped;          ///< empty documents between separators, of each file
  std::vector<DocumentPlace> documents;  ///< of text, in order, none empty
  std::vector<char32_t> code_points;     ///< of all text, sorted
};
/// Collective. Reads every file once, all ranks and threads sharing the pieces: hash, UTF-8, characters, documents;
/// for rows the length of lines. UserError with file, line and byte.
SourceScan scan_sources(const std::vector<InputFile>& files, Communicator& communicator,
                        const std::function<void(double)>& progress);

/// "file:line: byte N: what": the line is found by reading the file up to the byte.
[[noreturn]] void fail_at_byte(const FileHandle& file, int64_t offset, const std::string& what);
/// Number of the line that holds the byte, from 1.
int64_t line_of_byte(const FileHandle& file, int64_t offset);

}  // namespace llmtrain
