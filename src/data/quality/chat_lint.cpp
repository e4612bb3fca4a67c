#include "data/quality/chat_lint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/error.hpp"
#include "data/files/jsonl.hpp"
#include "data/formats/encode_documents.hpp"

namespace llmtrain {
namespace {

constexpr int linted_rows = 64;  ///< rows of each file

/// True for texts that are one token wherever a template writes them.
bool names_special_token(std::string_view text) {
  constexpr std::array<std::string_view, 6> known = {"<s>",          "</s>", "<bos>", "<eos>", "<start_of_turn>",
                                                     "<end_of_turn>"};
  constexpr std::string_view wide_bar = "\xEF\xBD\x9C";
  return std::ranges::find(known, text) != known.end() || (text.starts_with("<|") && text.ends_with("|>")) ||
         text.substr(1).starts_with(wide_bar);
}

}  // namespace

void find_split_tokens(const EncodedRow& row, std::vector<std::string>& split) {
  const std::string& text = row.text.text;
  const std::vector<TextRange>& content = row.text.content;
  const auto from_row = [&](size_t at) {
    const auto next = std::ranges::upper_bound(content, at, {}, &TextRange::end);
    return next != content.end() && at >= next->begin;
  };
  size_t token = 0;
  for (size_t begin = text.find('<'); begin != std::string::npos; begin = text.find('<', begin + 1)) {
    const size_t end = text.find_first_of("> \n<", begin + 1);
    if (end == std::string::npos || text[end] != '>' || from_row(begin) || from_row(end)) continue;
    std::string found = text.substr(begin, end + 1 - begin);
    if (!names_special_token(found) || std::ranges::find(split, found) != split.end()) continue;
    while (token < row.ranges.size() && row.ranges[token].begin < begin) ++token;
    size_t inside = 0;
    for (size_t i = token; i < row.ranges.size() && row.ranges[i].end <= end + 1; ++i) {
      if (row.ranges[i].begin < row.ranges[i].end) ++inside;
    }
    if (inside > 1) split.push_back(std::move(found));
  }
}

std::string split_token_warning(const std::string& text) {
  return fmt::format(
      "the template writes {}, which is not one token of this tokenizer: the template may belong to another model, or "
      "the token must be added (data.add_tokens)",
      text);
}

std::vector<std::string> lint_first_rows(const std::vector<InputFile>& files, const ChatEncoder& encoder) {
  std::vector<std::string> split;
  for (const InputFile& file : files) {
    if (file.kind != InputKind::instruction_rows) continue;
    const FileHandle handle = open_content(file);
    const RowReader reader(file.format.row_format, file.format.columns, encoder.has_template());
    LineReader lines(handle, file.bytes, 0, file.bytes, file.format.row_limit);
    std::vector<EncodedRow> encoded;
    std::string_view line;
    try {
      for (int row = 0; row < linted_rows && lines.next(line); ++row) {
        if (is_blank(line)) continue;
        encode_documents(encoder, reader.read_documents(line), encoded);
        for (const EncodedRow& document : encoded) find_split_tokens(document, split);
      }
    } catch (const UserError&) {  // the tokenization reports it
    }
  }
  std::vector<std::string> warnings;
  warnings.reserve(split.size());
  for (const std::string& text : split) warnings.push_back(split_token_warning(text));
  return warnings;
}

bool has_conversations(const std::vector<InputFile>& files) {
  return std::ranges::any_of(files, [](const InputFile& file) {
    return file.kind == InputKind::instruction_rows && file.format.row_format != "text";
  });
}

}  // namespace llmtrain
