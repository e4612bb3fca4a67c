#include "data/files/text_source.hpp"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/error.hpp"
#include "data/files/input_kind.hpp"

namespace llmtrain {
namespace {

std::vector<std::string> expand(const std::string& pattern) {
  std::error_code error;
  if (std::filesystem::exists(pattern, error))
    return {pattern};  // also finds names that contain characters special in patterns
  if (error && error != std::errc::filename_too_long) {
    throw UserError(ExitCode::missing_input, pattern + ": " + error.message());
  }
  glob_t found{};
  std::vector<std::string> paths;
  const int status = ::glob(pattern.c_str(), GLOB_ERR | GLOB_NOSORT, nullptr, &found);
  if (status == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  if (paths.empty()) {
    const bool wild = pattern.find_first_of("*?[") != std::string::npos;
    throw UserError(ExitCode::missing_input,
                    pattern + (wild ? ": no file matches" : ": there is no such file") +
                        (status == GLOB_ABORTED ? " (a folder on the way cannot be read)" : ""));
  }
  std::sort(paths.begin(), paths.end());  // byte order, whatever the locale
  return paths;
}

}  // namespace

std::vector<InputFile> find_input_files(const std::vector<std::string>& patterns, const TextFormat& format) {
  std::vector<InputFile> files;
  std::set<std::string> seen;
  for (const std::string& pattern : patterns) {
    for (const std::string& path : expand(pattern)) {
      std::error_code ignored;
      const std::filesystem::path real = std::filesystem::canonical(path, ignored);
      if (!seen.insert(ignored ? path : real.string()).second) {
        throw UserError(ExitCode::deck, path + ": it is named twice; name each file once");
      }
      const FileHandle file = FileHandle::open_to_read(path);
      InputFile input{path, path, format, InputKind::text, file.size(), file.modified()};
      examine_input(file, input);
      files.push_back(std::move(input));
    }
  }
  return files;
}

FileHandle open_content(const InputFile& file) {
  if (file.content_path.empty()) return FileHandle::open_to_read(file.path);
  FileHandle handle = FileHandle::open_to_read(file.content_path);
  handle.show_as(file.path + " (unpacked)");
  return handle;
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

void fail_in_row(const FileHandle& file, int64_t offset, const std::string& what) {
  throw UserError(ExitCode::bad_content, fmt::format("{}:{}: {}", file.path(), line_of_byte(file, offset), what));
}

void fail_at_byte(const FileHandle& file, int64_t offset, const std::string& what) {
  throw UserError(ExitCode::bad_content,
                  fmt::format("{}:{}: byte {}: {}", file.path(), line_of_byte(file, offset), offset, what));
}

}  // namespace llmtrain
