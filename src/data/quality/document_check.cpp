#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "core/utf8.hpp"
#include "data/files/jsonl.hpp"
#include "data/quality/data_report.hpp"
#include "text/unicode/code_points.hpp"

namespace llmtrain {
namespace {

/// Returns up to `most` bytes of whole characters from the front of a text.
std::string_view front_of(std::string_view text, size_t most) {
  if (text.size() <= most) return text;
  while (most > 1 && is_utf8_continuation(text[most])) --most;
  return text.substr(0, most);
}

/// Characters that the tokenizer does not cover are skipped and counted. Each costs an encoding of the following text,
/// so a text that contains some is counted in short segments.
void count_tokens(std::string_view text, const CheckOptions& options, SegmentFacts& facts) {
  constexpr size_t short_piece = 256;
  thread_local std::vector<int32_t> ids;
  const auto count = [&](std::string_view piece) {
    ids.clear();
    options.tokenizer->encode(piece, ids);
    facts.tokens += static_cast<int64_t>(ids.size());
    facts.unknown += std::ranges::count(ids, options.unknown_id);
  };
  for (size_t most = text.size(); !text.empty();) {
    const std::string_view piece = front_of(text, most);
    try {
      count(piece);
      text.remove_prefix(piece.size());
    } catch (const EncodeError& error) {
      most = short_piece;
      if (piece.size() > most) continue;
      const size_t at = std::min(error.byte(), piece.size() - 1);
      size_t next = at + 1;
      while (next < text.size() && is_utf8_continuation(text[next])) ++next;
      if (at > 0) count(piece.substr(0, at));
      ++facts.tokens;
      ++facts.unknown;
      text.remove_prefix(next);
    }
  }
}

}  // namespace

SegmentFacts examine(const DocumentSegment& segment, InputKind kind, const CheckOptions& options) {
  SegmentFacts facts;
  std::string decoded;
  std::string_view text = segment.text;
  if (kind != InputKind::text) {
    if (!segment.first || !segment.last || is_blank(text)) return facts;
    try {
      parse_text_row(text, options.text_column, decoded);
      text = decoded;
    } catch (const RowError& error) {
      facts.row_is_broken = true;
      facts.problem = error.reason();
      facts.problem_byte = static_cast<int64_t>(error.byte());
      return facts;
    }
  }
  facts.bytes = static_cast<int64_t>(text.size());
  facts.content = XXH3_64bits(text.data(), text.size());
  facts.blank = std::ranges::all_of(text, [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }) ? 1 : 0;
  const size_t invalid = find_invalid_utf8(text);
  if (invalid != std::string_view::npos) {
    facts.wrong_encoding = true;
    facts.problem = fmt::format("0x{:02x} is not part of UTF-8 text", static_cast<uint8_t>(text[invalid]));
    facts.problem_byte = static_cast<int64_t>(invalid);
    return facts;
  }
  for (const char c : text) facts.characters += is_utf8_continuation(c) ? 0 : 1;
  SimHash similar;
  similar.add(text);
  facts.similar = similar.bits();
  facts.runs = similar.runs();
  if (options.tokenizer != nullptr) count_tokens(text, options, facts);
  return facts;
}

}  // namespace llmtrain
