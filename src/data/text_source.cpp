#include "data/text_source.hpp"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/error.hpp"

namespace llmtrain {
namespace {

bool ends_with(const std::string& text, std::string_view ending) {
  return text.size() > ending.size() && text.compare(text.size() - ending.size(), ending.size(), ending) == 0;
}

InputKind kind_of(const std::string& path) {
  if (ends_with(path, ".h5") || ends_with(path, ".hdf5")) return InputKind::tokens;
  return ends_with(path, ".jsonl") ? InputKind::rows : InputKind::text;
}

std::vector<std::string> expand(const std::string& pattern) {
  std::error_code error;
  if (std::filesystem::exists(pattern, error)) return {pattern};  // also names with characters special in patterns
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
                    pattern + (wild ? ": no file has such a name" : ": there is no such file") +
                        (status == GLOB_ABORTED ? " (a folder on the way cannot be read)" : ""));
  }
  std::sort(paths.begin(), paths.end());  // by byte, whatever the locale
  return paths;
}

/// Looks at the beginning of a text: a byte order mark, and how its lines end.
void examine_text(const FileHandle& file, InputFile& input) {
  std::string head(static_cast<size_t>(std::min<int64_t>(input.bytes, hash_piece)), '\0');
  head.resize(static_cast<size_t>(file.read_some(0, static_cast<int64_t>(head.size()), head.data())));
  if (head.starts_with("\xEF\xBB\xBF")) input.text_begin = 3;
  const size_t line_end = head.find('\n');
  const bool carriage_return = line_end != std::string::npos && line_end > 0 && head[line_end - 1] == '\r';
  if (!carriage_return || input.separator.find('\r') != std::string::npos) return;
  for (size_t at = input.separator.find('\n'); at != std::string::npos; at = input.separator.find('\n', at + 2)) {
    input.separator.insert(at, 1, '\r');
  }
}

}  // namespace

std::vector<InputFile> find_input_files(const std::vector<std::string>& patterns, const std::string& separator) {
  std::vector<InputFile> files;
  std::set<std::string> seen;
  for (const std::string& pattern : patterns) {
    for (const std::string& path : expand(pattern)) {
      std::error_code ignored;
      const std::filesystem::path real = std::filesystem::canonical(path, ignored);
      if (!seen.insert(ignored ? path : real.string()).second) {
        throw UserError(ExitCode::deck, path + ": named twice; each file may be given once");
      }
      const FileHandle file = FileHandle::open_to_read(path);
      InputFile input{path, path, separator, kind_of(path), file.size(), file.modified()};
      if (input.kind == InputKind::text) examine_text(file, input);
      if (input.bytes == input.text_begin) throw UserError(ExitCode::bad_content, path + ": the file is empty");
      files.push_back(std::move(input));
    }
  }
  return files;
}

std::vector<FilePiece> cut_into_pieces(const std::vector<InputFile>& files) {
  std::vector<FilePiece> pieces;
  for (size_t f = 0; f < files.size(); ++f) {
    for (int64_t begin = 0; begin < files[f].bytes; begin += hash_piece) {
      pieces.push_back({f, begin, std::min(begin + hash_piece, files[f].bytes)});
    }
  }
  return pieces;
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

void fail_at_byte(const FileHandle& file, int64_t offset, const std::string& what) {
  throw UserError(ExitCode::bad_content,
                  fmt::format("{}:{}: byte {}: {}", file.path(), line_of_byte(file, offset), offset, what));
}

}  // namespace llmtrain
