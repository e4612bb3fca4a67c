#include "data/text_source.hpp"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/error.hpp"
#include "data/jsonl.hpp"

namespace llmtrain {
namespace {

/// Formats that cannot be read as text, and the way out.
struct RefusedFormat {
  std::string_view ending, advice;
};
constexpr RefusedFormat refused_formats[] = {
    {".parquet",
     "Parquet is not read in this version: make rows of it, e.g. with duckdb -c \"COPY (SELECT text FROM "
     "'FILE.parquet') TO 'FILE.jsonl' (FORMAT json)\""},
    {".arrow", "Arrow is not read in this version: make rows of text (.jsonl) of it"},
    {".tar", "an archive: unpack it, and name the files in it"},
    {".tgz", "an archive: unpack it, and name the files in it"},
    {".zip", "an archive: unpack it, and name the files in it"},
    {".7z", "an archive: unpack it, and name the files in it"},
    {".bz2", "only gzip and zstd are unpacked: bzip2 -dc FILE.bz2 | zstd > FILE.zst"},
    {".xz", "only gzip and zstd are unpacked: xz -dc FILE.xz | zstd > FILE.zst"},
    {".lz4", "only gzip and zstd are unpacked: lz4 -dc FILE.lz4 | zstd > FILE.zst"},
};

/// Of rows it is not final: kind_of_rows looks at the first one.
InputKind kind_of(const std::string& path) {
  const std::string_view name = uncompressed_name(path);
  for (const RefusedFormat& format : refused_formats) {
    if (name.size() > format.ending.size() && name.ends_with(format.ending)) {
      throw UserError(ExitCode::bad_content, fmt::format("{}: {}", path, format.advice));
    }
  }
  if (name.size() > 3 && (name.ends_with(".h5") || name.ends_with(".hdf5"))) {
    if (name.size() == path.size()) return InputKind::tokens;
    throw UserError(ExitCode::bad_content, path + ": token files are read in place: unpack it");
  }
  return name.size() > 6 && name.ends_with(".jsonl") ? InputKind::text_rows : InputKind::text;
}

/// The beginning of what the file holds: at least `wanted` bytes if there are as many.
class Beginning {
 public:
  Beginning(const FileHandle& file, const InputFile& input) : file_(file) {
    if (input.compression == Compression::none) return;
    constexpr int64_t any = int64_t{1} << 40;
    reader_ = std::make_unique<CompressedReader>(file, input.compression, any);
  }
  const std::string& read(int64_t wanted) {
    const auto have = static_cast<int64_t>(text_.size());
    if (wanted <= have) return text_;
    text_.resize(static_cast<size_t>(wanted));
    char* data = text_.data() + have;
    const int64_t n = reader_ ? reader_->read(data, wanted - have) : file_.read_some(have, wanted - have, data);
    text_.resize(static_cast<size_t>(have + n));
    return text_;
  }

 private:
  const FileHandle& file_;
  std::unique_ptr<CompressedReader> reader_;
  std::string text_;
};

/// Looks at the first row.
InputKind kind_of_rows(Beginning& beginning, const std::string& path) {
  size_t at = 0;
  for (int64_t wanted = hash_piece; at <= static_cast<size_t>(longest_row); wanted *= 2) {
    const std::string& text = beginning.read(wanted);
    const bool ended = static_cast<int64_t>(text.size()) < wanted;
    for (size_t end = text.find('\n', at); end != std::string::npos || (ended && at < text.size());
         end = text.find('\n', at)) {
      const std::string_view line = std::string_view(text).substr(at, end - at);
      at = end == std::string::npos ? text.size() : end + 1;
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      return row_has_ids(line) ? InputKind::token_rows : InputKind::text_rows;
    }
    if (ended) throw UserError(ExitCode::bad_content, path + ": it has no row");
    if (wanted > longest_row) break;  // no line ends: reading it will say so
  }
  return InputKind::text_rows;
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

/// A .json that is one value, and no rows or text.
void refuse_whole_json(Beginning& beginning, const std::string& path) {
  if (!uncompressed_name(path).ends_with(".json")) return;
  const std::string& head = beginning.read(hash_piece);
  const size_t first = head.find_first_not_of(" \t\r\n");
  if (first == std::string::npos || (head[first] != '[' && head[first] != '{')) return;
  throw UserError(
      ExitCode::bad_content,
      fmt::format("{}: byte {}: a JSON {} is not read as text. Rows are read from .jsonl, one object on each "
                  "line: {}",
                  path, first, head[first] == '[' ? "array" : "object",
                  head[first] == '[' ? "jq -c '.[]' FILE.json > FILE.jsonl"
                                     : "name the file so, or jq -c '.LIST[]' FILE.json > FILE.jsonl"));
}

/// Looks at the beginning of a text: a byte order mark, and how its lines end.
void examine_text(Beginning& beginning, InputFile& input) {
  const std::string& head = beginning.read(hash_piece);
  if (head.starts_with("\xEF\xBB\xBF")) input.text_begin = 3;
  const size_t line_end = head.find('\n');
  const bool carriage_return = line_end != std::string::npos && line_end > 0 && head[line_end - 1] == '\r';
  std::string& separator = input.format.separator;
  if (!carriage_return || separator.find('\r') != std::string::npos) return;
  for (size_t at = separator.find('\n'); at != std::string::npos; at = separator.find('\n', at + 2)) {
    separator.insert(at, 1, '\r');
  }
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
        throw UserError(ExitCode::deck, path + ": named twice; each file may be given once");
      }
      const FileHandle file = FileHandle::open_to_read(path);
      InputFile input{path, path, format, kind_of(path), file.size(), file.modified()};
      input.compression = compression_of(path);
      if (input.bytes == 0) throw UserError(ExitCode::bad_content, path + ": the file is empty");
      Beginning beginning(file, input);
      if (input.kind == InputKind::text) {
        refuse_whole_json(beginning, path);
        examine_text(beginning, input);
      }
      if (input.bytes == input.text_begin) throw UserError(ExitCode::bad_content, path + ": the file is empty");
      if (input.kind == InputKind::text_rows) input.kind = kind_of_rows(beginning, path);
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

void check_skipped_rows(const std::string& path, int64_t rows, int64_t skipped) {
  if (2 * skipped <= rows) return;
  throw UserError(ExitCode::bad_content,
                  fmt::format("{}: {} of {} rows are empty, at most half may be: is data.text_column the right one?",
                              path, skipped, rows));
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
