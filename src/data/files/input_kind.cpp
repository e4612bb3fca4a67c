#include "data/files/input_kind.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <span>

#include "core/error.hpp"
#include "data/files/jsonl.hpp"
#include "data/formats/row_format.hpp"

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
  std::ranges::sort(paths);  // byte order, whatever the locale
  return paths;
}

constexpr std::string_view row_endings[] = {".jsonl", ".ndjson", ".jsonlines", ".ldjson"};
constexpr std::string_view token_endings[] = {".h5", ".hdf5"};
constexpr std::string_view blank = " \t\r\n";

/// Columns of other trainers that change the training data or its use.
constexpr std::string_view unused_columns[] = {"position_ids", "token_type_ids", "special_tokens_mask", "loss_mask"};

/// Formats that cannot be read as text, by the ending of the name or by the first bytes, and the remedy.
struct RefusedFormat {
  std::string_view ending, magic, advice;
};
constexpr std::string_view unpack_archive = "an archive; unpack it and name its files";
constexpr RefusedFormat refused_formats[] = {
    {".tar", "", unpack_archive},
    {".tgz", "", unpack_archive},
    {".zip", "PK\x03\x04", unpack_archive},
    {".7z", "7z\xBC\xAF\x27\x1C", unpack_archive},
    {".bz2", "BZh91AY&SY", "only gzip and zstd are supported; run bzip2 -dc FILE.bz2 | zstd > FILE.zst"},
    {".xz",
     "\xFD"
     "7zXZ",
     "only gzip and zstd are supported; run xz -dc FILE.xz | zstd > FILE.zst"},
    {".lz4", "\x04\x22\x4D\x18", "only gzip and zstd are supported; run lz4 -dc FILE.lz4 | zstd > FILE.zst"},
};

/// Text of ASCII in UTF-16 has a NUL at every second byte, another alphabet's a control character; and a NUL where a
/// line ends. Text in UTF-32 has both.
void refuse_wide_characters(const std::string& path, std::string_view head) {
  const auto refuse = [&](std::string_view what, std::string_view name) {
    throw UserError(ExitCode::bad_content,
                    fmt::format("{}:1: byte 0: {} (it looks like {}: convert it, e.g. with iconv -f {} -t UTF-8)", path,
                                what, name.substr(0, 6), name));
  };
  for (const std::string_view mark : {"\xFF\xFE", "\xFE\xFF"}) {
    const auto first = static_cast<uint8_t>(mark.front());
    if (head.starts_with(mark)) refuse(fmt::format("0x{:02x} is not part of UTF-8 text", first), "UTF-16");
  }
  constexpr size_t sample = size_t{1} << 16;
  const std::string_view text = head.substr(0, std::min(sample, head.size() & ~size_t{1}));
  const size_t pairs = text.size() / 2;
  size_t nul[2] = {0, 0}, control[2] = {0, 0};
  for (size_t i = 0; i < text.size(); ++i) {
    nul[i % 2] += text[i] == '\0' ? 1 : 0;
    control[i % 2] += static_cast<uint8_t>(text[i]) < 0x20 ? 1 : 0;
  }
  for (const size_t high : {0, 1}) {
    const bool wide = pairs >= 2 && 10 * control[high] >= 9 * pairs && 20 * nul[high] >= pairs;
    const size_t filled = text.size() - nul[0] - nul[1];
    if (!wide || 5 * filled < text.size()) continue;  // nothing but NULs is another fault
    const bool four = 5 * filled < 2 * text.size();
    refuse("a NUL at every second byte",
           four ? (high == 0 ? "UTF-32BE" : "UTF-32LE") : (high == 0 ? "UTF-16BE" : "UTF-16LE"));
  }
}

/// Records that a byte 0x1E begins.
void refuse_sequence(const InputFile& input, std::string_view head) {
  const size_t first = head.find_first_not_of(blank, static_cast<size_t>(input.text_begin));
  if (first == std::string_view::npos || head[first] != '\x1E') return;
  throw UserError(ExitCode::bad_content,
                  fmt::format("{}: byte {}: 0x1E begins the records of a JSON text sequence (RFC 7464), which is not "
                              "read: tr -d '\\036' < FILE > FILE.jsonl makes rows of it",
                              input.path, first));
}

void refuse_format(const std::string& path, std::string_view head) {
  for (const RefusedFormat& format : refused_formats) {
    const bool named = has_ending(uncompressed_name(path), format.ending);
    if (!named && (format.magic.empty() || !head.starts_with(format.magic))) continue;
    throw UserError(ExitCode::bad_content, fmt::format("{}: {}", path, format.advice));
  }
}

/// Beginning of a file: at least `wanted` bytes if there are as many.
class Beginning {
 public:
  Beginning(const FileHandle& file, const InputFile& input) : file_(file) {
    if (!input.is_packed()) return;
    constexpr int64_t any = int64_t{1} << 50;
    InputFile looked_at = input;
    looked_at.columns.skips_binary = true;
    reader_ = open_packed(file, looked_at, any);
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
  std::unique_ptr<TextReader> reader_;
  std::string text_;
};

/// Returns the end of the JSON string that begins at `at`, after its quote; npos: not on this line.
size_t end_of_string(std::string_view text, size_t at) {
  for (++at; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"') return at + 1;
    if (c == '\n' || c == '\r') return std::string_view::npos;
    if (c == '\\') ++at;
  }
  return text.size() + 1;
}

/// Returns the end of the object that begins at `at`; npos: not a JSON object with a key on one line; beyond the text:
/// the text ends within the value of a key.
size_t end_of_object(std::string_view text, size_t at) {
  const size_t key = text.find_first_not_of(" \t", at + 1);
  if (key == std::string_view::npos || text[key] != '"') return std::string_view::npos;
  const size_t key_end = end_of_string(text, key);
  if (key_end >= text.size()) return std::string_view::npos;
  const size_t colon = text.find_first_not_of(" \t", key_end);
  if (colon == std::string_view::npos || text[colon] != ':') return std::string_view::npos;
  int64_t depth = 1;
  for (at = colon; at < text.size();) {
    const char c = text[at];
    if (c == '\n' || c == '\r') return std::string_view::npos;
    if (c == '"') {
      at = end_of_string(text, at);
      if (at == std::string_view::npos) return at;
      continue;
    }
    ++at;
    depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
    if (depth == 0) return c == '}' ? at : std::string_view::npos;
  }
  return text.size() + 1;
}

enum class Rows : uint8_t { none, one, several };

/// Returns where the value after an object begins; some write commas between objects.
size_t next_value(std::string_view text, size_t end) {
  return text.find_first_not_of(" \t\r\n,", std::min(end, text.size()));
}

/// Returns whether a text begins with rows of JSON: an object with a key on one line, after which there is nothing or
/// another object. Empty objects may stand before it. A line that the text cuts is judged by what is there.
Rows rows_in(std::string_view text) {
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
  size_t first = text.find_first_not_of(blank);
  bool alone = true;
  const auto begins_object = [&] { return first != std::string_view::npos && text[first] == '{'; };
  for (; begins_object(); alone = false) {
    const size_t close = text.find_first_not_of(" \t", first + 1);
    if (close == std::string_view::npos || text[close] != '}') break;
    first = next_value(text, close + 1);
  }
  if (!begins_object()) return Rows::none;
  const size_t end = end_of_object(text, first);
  if (end == std::string_view::npos) return Rows::none;
  const size_t next = next_value(text, end);
  if (next == std::string_view::npos) return alone ? Rows::one : Rows::several;
  return text[next] == '{' ? Rows::several : Rows::none;
}

/// The text after the comments that it begins with.
std::string_view behind_comments(std::string_view text) {
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
  for (;;) {
    text.remove_prefix(std::min(text.find_first_not_of(blank), text.size()));
    if (!text.starts_with('#') && !text.starts_with("//")) return text;
    text.remove_prefix(std::min(text.find('\n'), text.size()));
  }
}

/// Reads at least one piece, and continues to the first byte that is not blank.
const std::string& read_head(Beginning& beginning) {
  constexpr int64_t most = int64_t{64} << 20;
  for (int64_t wanted = hash_piece;; wanted *= 2) {
    const std::string& head = beginning.read(wanted);
    const bool ended = static_cast<int64_t>(head.size()) < wanted;
    if (ended || wanted >= most || head.find_first_not_of(blank) != std::string::npos) return head;
  }
}

/// Notes columns of a row of ids that have no effect.
void note_unused_columns(const std::vector<std::string>& keys, InputFile& input) {
  const auto has = [&](std::string_view key) { return std::ranges::find(keys, key) != keys.end(); };
  std::vector<std::string_view> unused;
  std::copy_if(std::begin(unused_columns), std::end(unused_columns), std::back_inserter(unused), has);
  if (unused.empty()) return;
  input.notes.push_back(
      fmt::format("{}: its rows have {}, which has no effect: input_ids, attention_mask, labels, completion_mask and "
                  "assistant_masks are read",
                  input.path, fmt::join(unused, ", ")));
}

/// Returns the line that begins at byte `at`; nothing at the end, or if none of at most `most` bytes ends.
std::optional<std::string_view> line_at(Beginning& beginning, size_t at, int64_t most) {
  for (int64_t wanted = hash_piece;; wanted = std::min(2 * wanted, most)) {
    const std::string_view text = beginning.read(static_cast<int64_t>(at) + wanted);
    const bool ended = text.size() < at + static_cast<size_t>(wanted);
    const size_t end = std::min(text.find('\n', at), text.size());
    if (at < text.size() && (end < text.size() || ended)) return text.substr(at, end - at);
    if (ended || wanted == most) return std::nullopt;
  }
}

/// Takes the format of the deck, or that of the first rows, which begin at byte `at`.
void recognise_format(Beginning& beginning, size_t at, InputFile& input) {
  TextFormat& format = input.format;
  const bool automatic = format.row_format == "auto";
  FormatRecognition recognition(format.row_format, format.columns);
  const int64_t most = format.row_limit + hash_piece;
  const size_t last = at + static_cast<size_t>(most);
  const std::string& text = beginning.read(static_cast<int64_t>(at));
  int64_t line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
  while (const auto row = line_at(beginning, at, most)) {
    try {
      if (row->find_first_not_of(blank) != std::string_view::npos) {
        recognition.add(*row);
        const RowFormat& found = *find_row_format(recognition.format());
        if (const std::string why = refused_use(format.use, found.group, found.column); !why.empty()) {
          throw UserError(ExitCode::bad_content, fmt::format("its rows are of format {}: {}", found.name, why));
        }
      }
    } catch (const UserError& error) {
      throw UserError(error.code(), fmt::format("{}: {}", place_of_line(input.path, line), error.what()));
    }
    at += row->size() + 1;
    ++line;
    if (!recognition.wants_more() || at > last) break;
  }
  format.row_format = recognition.format();
  const std::string unread = recognition.unread_columns();
  if (!unread.empty()) input.notes.push_back(fmt::format("{}: {}", input.path, unread));
  if (format.row_format == "text") return;
  input.kind = InputKind::instruction_rows;
  if (automatic) input.notes.push_back(fmt::format("{}: its rows are of format {}", input.path, format.row_format));
}

/// Looks at the first row. False: it has neither ids nor the column of the text.
bool examine_rows(Beginning& beginning, InputFile& input) {
  input.kind = InputKind::text_rows;
  size_t at = static_cast<size_t>(input.text_begin);
  const int64_t most = input.format.row_limit + hash_piece;
  for (int64_t wanted = hash_piece;; wanted = std::min(2 * wanted, most)) {
    const std::string& text = beginning.read(wanted);
    const bool ended = static_cast<int64_t>(text.size()) < wanted;
    at = std::min(text.find_first_not_of(blank, at), text.size());
    const size_t line_end = text.find('\n', at);
    if (at < text.size() && (line_end != std::string::npos || ended)) {
      const std::string_view row = std::string_view(text).substr(at, line_end - at);
      const std::vector<std::string> keys = row_keys(row);
      const auto has = [&](std::string_view key) { return std::ranges::find(keys, key) != keys.end(); };
      if (has("input_ids")) {
        input.kind = InputKind::token_rows;
        note_unused_columns(keys, input);
        return true;
      }
      if (input.format.row_format != "text") {
        recognise_format(beginning, at, input);
      }
      return input.kind == InputKind::instruction_rows || has(input.format.column);
    }
    if (ended) throw UserError(ExitCode::bad_content, input.path + ": it has no row");
    if (wanted == most) return true;  // no line ends, or all lines blank: reading reports it
  }
}

/// The columns that rows of this kind and format can use; none: all of them.
std::vector<std::string> used_columns(const InputFile& input) {
  if (input.kind == InputKind::token_rows) {
    return {"input_ids", "attention_mask", "labels", "completion_mask", "assistant_masks"};
  }
  std::vector<std::string> names;
  if (input.kind == InputKind::text_rows) names.push_back(input.format.column);
  for (const std::string& entry : input.format.columns) names.push_back(entry.substr(entry.find(':') + 1));
  if (input.kind == InputKind::text_rows) return names;
  const RowFormat& format = *find_row_format(input.format.row_format);
  if (format.column == prompt_column) return {};  // [rewards] and generations have the others
  for (const RowRole& role : format.roles) {
    if (role.place == RowRole::Place::in_message) continue;
    for (const std::string_view column : role.columns) {
      if (!column.empty()) names.emplace_back(column);
    }
  }
  return names;
}

/// Refuses a .json that is a single value, neither rows nor text.
void refuse_whole_json(const InputFile& input, const std::string& head) {
  const size_t first = head.find_first_not_of(blank, static_cast<size_t>(input.text_begin));
  if (first == std::string::npos || (head[first] != '[' && head[first] != '{')) return;
  const bool array = head[first] == '[';
  throw UserError(ExitCode::bad_content,
                  fmt::format("{}: byte {}: a JSON {} cannot be read as text. Rows are read from .jsonl, one object on "
                              "each line: {}. data.json_as_text (llmtool: --json-as-text) reads it as text",
                              input.path, first, array ? "array" : "object",
                              array ? "jq -c '.[]' FILE.json > FILE.jsonl"
                                    : "jq -c . FILE.json > FILE.jsonl, or jq -c '.LIST[]' FILE.json > FILE.jsonl"));
}

/// If the lines end with CR LF, so does the separator.
void examine_lines(const std::string& head, InputFile& input) {
  const size_t line_end = head.find('\n');
  const bool carriage_return = line_end != std::string::npos && line_end > 0 && head[line_end - 1] == '\r';
  std::string& separator = input.format.separator;
  if (!carriage_return || separator.find('\r') != std::string::npos) return;
  for (size_t at = separator.find('\n'); at != std::string::npos; at = separator.find('\n', at + 2)) {
    separator.insert(at, 1, '\r');
  }
}

bool ends_in_one_of(std::string_view path, std::span<const std::string_view> endings) {
  return std::ranges::any_of(endings, [&](std::string_view ending) { return has_ending(path, ending); });
}

}  // namespace

std::vector<std::string> value_columns(const std::vector<std::string>& entries) {
  std::vector<std::string> names = {"label", "labels", "kto_tag", "margin"};
  for (const std::string_view role : {std::string_view("label"), std::string_view("margin"), difficulty_column}) {
    if (std::string name = named_column(entries, role); !name.empty()) names.push_back(std::move(name));
  }
  return names;
}

bool names_rows(std::string_view path) { return ends_in_one_of(path, row_endings); }
bool names_tokens(std::string_view path) { return ends_in_one_of(path, token_endings); }

void examine_input(const FileHandle& file, InputFile& input) {
  if (input.bytes == 0) throw UserError(ExitCode::bad_content, input.path + ": the file is empty");
  refuse_format(input.path, "");
  input.compression = compression_of(file);
  input.table = table_of(file, input.compression);
  if (input.table != TableKind::none) {
    input.columns.values = value_columns(input.format.columns);
    Beginning rows(file, input);
    if (examine_rows(rows, input)) input.columns.read = used_columns(input);
    return;
  }
  const std::string_view name = uncompressed_name(input.path);
  if (names_tokens(name)) {
    input.kind = InputKind::tokens;
    if (input.compression == Compression::none) return;
    throw UserError(ExitCode::bad_content, input.path + ": token files cannot be compressed; unpack it");
  }
  Beginning beginning(file, input);
  const std::string& head = read_head(beginning);
  refuse_format(input.path, head);
  refuse_wide_characters(input.path, head);
  if (head.starts_with(byte_order_mark)) input.text_begin = static_cast<int64_t>(byte_order_mark.size());
  if (!input.is_packed() && input.bytes == input.text_begin) {
    throw UserError(ExitCode::bad_content, input.path + ": the file is empty");
  }
  const bool named = names_rows(name), json = has_ending(name, ".json");
  if (named || !input.format.json_as_text) refuse_sequence(input, head);
  const Rows rows = named ? Rows::several : input.format.json_as_text ? Rows::none : rows_in(head);
  if (rows != Rows::none) {
    const bool readable = examine_rows(beginning, input);
    if (json && rows == Rows::one && !readable) refuse_whole_json(input, head);
    input.by_content = !named;
    if (named || json) return;
    input.notes.insert(input.notes.begin(),
                       fmt::format("{}: its lines are JSON objects and are read as rows; data.json_as_text (llmtool: "
                                   "--json-as-text) reads them as text",
                                   input.path));
    return;
  }
  if (json && !input.format.json_as_text) refuse_whole_json(input, head);
  if (!input.format.json_as_text && rows_in(behind_comments(head)) == Rows::several) {
    input.notes.push_back(
        fmt::format("{}: lines of JSON objects follow the comments that it begins with, and all of it is read as text; "
                    "to read rows, remove the comments: grep -v '^#' FILE > FILE.jsonl",
                    input.path));
  }
  examine_lines(head, input);
}

bool has_kind(const std::vector<InputFile>& files, InputKind kind) {
  return std::ranges::find(files, kind, &InputFile::kind) != files.end();
}

void report_notes(const std::vector<InputFile>& files, const ProgressReport& report) {
  constexpr size_t max_told = 5;
  size_t notes = 0;
  for (const InputFile& file : files) {
    for (const std::string& note : file.notes) {
      if (++notes <= max_told) report(note);
    }
  }
  if (notes > max_told) report(fmt::format("and {} more notes of this kind on other files", notes - max_told));
}

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

}  // namespace llmtrain
