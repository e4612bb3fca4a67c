#include "data/tables/table_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/error.hpp"
#include "core/files/json_reader.hpp"

namespace llmtrain {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view parquet_endings[] = {".parquet", ".parq"};
constexpr std::string_view arrow_endings[] = {".arrow", ".arrows", ".feather", ".ipc"};

template <size_t n>
bool ends_in_one_of(std::string_view name, const std::string_view (&endings)[n]) {
  return std::ranges::any_of(endings, [&](std::string_view ending) { return has_ending(name, ending); });
}

[[noreturn]] void refuse(const FileHandle& file, const std::string& what) {
  throw UserError(ExitCode::bad_content, fmt::format("{}: {}", file.path(), what));
}

}  // namespace

TableKind table_of(const FileHandle& file, Compression compression) {
  const std::string_view name = uncompressed_name(file.path());
  const bool names_parquet = ends_in_one_of(name, parquet_endings), names_arrow = ends_in_one_of(name, arrow_endings);
  if (compression != Compression::none) {
    if (names_parquet || names_arrow) refuse(file, "Parquet and Arrow files are not compressed again: unpack the file");
  } else {
    std::array<char, 8> first{};
    const std::string_view magic(first.data(), static_cast<size_t>(file.read_some(0, first.size(), first.data())));
    if (magic.starts_with("PAR1\x15") || (names_parquet && magic.starts_with("PAR1"))) return TableKind::parquet;
    if (magic.starts_with("ARROW1\0\0"sv)) return TableKind::arrow;
    if (names_arrow && magic.starts_with("\xFF\xFF\xFF\xFF"sv)) return TableKind::arrow;  // a stream
    if (names_parquet && magic.starts_with("PARE")) refuse(file, "encrypted Parquet is not read: write it unencrypted");
    if (names_arrow && magic.starts_with("FEA1")) {
      refuse(file, "Feather of version 1 is not read: write it again with pyarrow.feather.write_feather(table, path)");
    }
    if (names_parquet || names_arrow) {
      refuse(file, fmt::format("its name says that it is {}, and its first bytes that it is not: rename it, or copy it "
                               "again",
                               names_parquet ? "Parquet" : "Arrow"));
    }
  }
  if (has_ending(name, ".csv")) return TableKind::csv;
  return has_ending(name, ".tsv") ? TableKind::tsv : TableKind::none;
}

TableKind table_of(const std::string& path) {
  try {
    const FileHandle file = FileHandle::open_to_read(path);
    return table_of(file, compression_of(file));
  } catch (const UserError&) {
    return TableKind::none;
  }
}

std::unique_ptr<TableFile> open_table(const std::string& path, TableKind kind, const TableColumns& columns) {
  LLMTRAIN_CHECK(kind != TableKind::none, "the file is not a table");
  if (kind == TableKind::csv || kind == TableKind::tsv) {
    return open_csv_table(path, kind == TableKind::csv ? ',' : '\t', columns);
  }
  return open_arrow_table(path, kind, columns);
}

int64_t TableReader::read(char* data, int64_t count) {
  int64_t done = 0;
  while (done < count) {
    if (used_ == lines_.size()) {
      lines_.clear();
      used_ = 0;
      if (!add_rows(lines_)) break;
    }
    const auto n = std::min(static_cast<size_t>(count - done), lines_.size() - used_);
    std::copy_n(lines_.data() + used_, n, data + done);
    used_ += n;
    done += static_cast<int64_t>(n);
  }
  given_ += done;
  if (given_ > limit_) {
    throw UserError(ExitCode::bad_content,
                    fmt::format("{}: its rows are more than {} bytes of JSON, the value of data.unpacked_limit; raise "
                                "it if the file is right",
                                path_, limit_));
  }
  return done;
}

void check_column_names(const std::string& path, const std::vector<std::string>& names) {
  std::vector<std::string> sorted = names;
  std::ranges::sort(sorted);
  const auto twice = std::ranges::adjacent_find(sorted);
  if (twice == sorted.end()) return;
  throw UserError(ExitCode::bad_content,
                  fmt::format("{}: it has two columns of the name {}: rename one", path, printable(*twice)));
}

bool reads_column(const TableColumns& columns, const std::string& name) {
  return columns.read.empty() || std::ranges::find(columns.read, name) != columns.read.end();
}

void append_json_string(std::string_view text, std::string& out) {
  out += '"';
  size_t plain = 0;  // begin of what needs no escape
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x20 && byte != '"' && byte != '\\') continue;
    out.append(text, plain, i - plain);
    plain = i + 1;
    if (byte == '"' || byte == '\\') {
      out += '\\';
      out += text[i];
    } else if (byte == '\n') {
      out += "\\n";
    } else {
      out += fmt::format("\\u{:04x}", byte);
    }
  }
  out.append(text, plain, text.size() - plain);
  out += '"';
}

}  // namespace llmtrain
