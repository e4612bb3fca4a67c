#include "data/document_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "core/utf8.hpp"
#include "data/jsonl.hpp"
#include "text/code_points.hpp"

namespace llmtrain {
namespace {

/// Characters that the tokenizer does not cover are stepped over and counted.
void count_tokens(std::string_view text, const CheckOptions& options, PartFacts& facts) {
  const Tokenizer& tokenizer = *options.tokenizer;
  thread_local std::vector<int32_t> ids;
  while (!text.empty()) {
    ids.clear();
    try {
      tokenizer.encode(text, ids);
      facts.tokens += static_cast<int64_t>(ids.size());
      facts.unknown += std::count(ids.begin(), ids.end(), options.unknown_id);
      return;
    } catch (const EncodeError& error) {
      const size_t at = std::min(error.byte(), text.size() - 1);
      ids.clear();
      if (at > 0) tokenizer.encode(text.substr(0, at), ids);
      facts.tokens += static_cast<int64_t>(ids.size()) + 1;
      ++facts.unknown;
      size_t next = at + 1;
      while (next < text.size() && is_utf8_continuation(text[next])) ++next;
      text.remove_prefix(next);
    }
  }
}

}  // namespace

PartFacts examine(const DocumentPart& part, InputKind kind, size_t text_begin, const CheckOptions& options) {
  PartFacts facts;
  std::string decoded;
  std::string_view text = part.text;
  if (kind == InputKind::text) {
    if (part.offset == 0) text.remove_prefix(std::min(text_begin, text.size()));
  } else {
    if (!part.first) return facts;  // of a line that is too long, which its first part has told
    try {
      if (!part.last) throw RowError(0, too_long_row());
      if (text.ends_with('\r')) text.remove_suffix(1);
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
  facts.blank =
      std::all_of(text.begin(), text.end(), [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }) ? 1 : 0;
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
