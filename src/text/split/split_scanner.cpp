#include "text/split/split_scanner.hpp"

#include "core/utf8.hpp"
#include "text/unicode/code_points.hpp"

namespace llmtrain {

SplitScanner::Character SplitScanner::long_character(size_t i, uint8_t lead) const {
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (i + length > text_.size()) reached_end_ = true;
  if (i + length > text_.size() || find_invalid_utf8(text_.substr(i, length)) != std::string_view::npos) {
    return {0xFFFD, char_class::rest, 1};
  }
  size_t end = i;
  const char32_t code = next_code_point(text_, end);
  return {code, table_.char_class(code), length};
}

size_t SplitScanner::contraction_end(size_t i, Fold fold) const {
  if (!is(i, '\'')) return i;
  const auto letter = [&](size_t k, char lower) {
    return is(k, lower) || (fold != Fold::none && is(k, static_cast<char>(lower - 'a' + 'A')));
  };
  const size_t k = i + 1;
  if (letter(k, 's') || letter(k, 't') || letter(k, 'm') || letter(k, 'd')) return k + 1;
  if ((letter(k, 'r') || letter(k, 'v')) && letter(k + 1, 'e')) return k + 2;
  if (letter(k, 'l') && letter(k + 1, 'l')) return k + 2;
  if (fold == Fold::unicode && is(k, '\xC5') && is(k + 1, '\xBF')) return k + 2;  // U+017F, long s
  return i;
}

size_t SplitScanner::space_end(size_t i, bool lines) const {
  size_t end = i, last = i, after_newline = i;
  while (!ends(end)) {
    const Character c = at(end);
    if ((c.classes & char_class::space) == 0) break;
    last = end;
    end += c.length;
    if (c.classes == char_class::newline) after_newline = end;
  }
  if (lines && after_newline > i) return after_newline;
  return end == text_.size() || last == i ? end : last;  // the last one belongs to the following text
}

}  // namespace llmtrain
