#include "data/files/text_source.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.hpp"

namespace llmtrain {

FileHandle open_content(const InputFile& file) {
  if (file.content_path.empty()) return FileHandle::open_to_read(file.path);
  FileHandle handle = FileHandle::open_to_read(file.content_path);
  handle.show_as(file.path + (file.table == TableKind::none ? " (unpacked)" : ""));
  return handle;
}

std::unique_ptr<TextReader> open_packed(const FileHandle& file, const InputFile& input, int64_t limit) {
  if (input.table == TableKind::none) return std::make_unique<CompressedReader>(file, input.compression, limit);
  const std::unique_ptr<TableFile> table = open_table(input.path, input.table, input.columns);
  return table->read(0, table->groups(), limit);
}

void cut_into_pieces(size_t file, int64_t bytes, std::vector<FilePiece>& pieces) {
  for (int64_t begin = 0; begin < bytes; begin += hash_piece) {
    pieces.push_back({file, begin, std::min(begin + hash_piece, bytes)});
  }
}

std::vector<FilePiece> cut_into_pieces(const std::vector<InputFile>& files) {
  std::vector<FilePiece> pieces;
  for (size_t f = 0; f < files.size(); ++f) cut_into_pieces(f, files[f].bytes, pieces);
  return pieces;
}

void check_skipped_rows(const std::string& path, int64_t rows, int64_t skipped, std::string_view hint) {
  if (2 * skipped <= rows) return;
  throw UserError(ExitCode::bad_content,
                  fmt::format("{}: {} of {} rows are empty; at most half may be; {}", path, skipped, rows, hint));
}

int64_t line_of_byte(const FileHandle& file, int64_t offset) {
  std::string buffer(static_cast<size_t>(hash_piece), '\0');
  int64_t line = 1;
  for (int64_t done = 0; done < offset; done += hash_piece) {
    const int64_t n = file.read_some(done, std::min(hash_piece, offset - done), buffer.data());
    line += std::count(buffer.begin(), buffer.begin() + n, '\n');
  }
  return line;
}

std::string place_of_line(const std::string& path, int64_t line) {
  try {
    const TableKind kind = table_of(path);
    if (kind != TableKind::none) return open_table(path, kind, {})->place_of(line);
  } catch (const UserError&) {  // it can no longer be read
  }
  return fmt::format("{}:{}", path, line);
}

void fail_in_row(const FileHandle& file, int64_t offset, const std::string& what) {
  throw UserError(ExitCode::bad_content,
                  fmt::format("{}: {}", place_of_line(file.path(), line_of_byte(file, offset)), what));
}

void fail_at_byte(const FileHandle& file, int64_t offset, const std::string& what) {
  const std::string place = place_of_line(file.path(), line_of_byte(file, offset));
  const bool has_bytes = table_of(file.path()) == TableKind::none;  // the user does not see the lines of a table
  throw UserError(ExitCode::bad_content,
                  has_bytes ? fmt::format("{}: byte {}: {}", place, offset, what) : fmt::format("{}: {}", place, what));
}

}  // namespace llmtrain
