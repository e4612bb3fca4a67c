#include "text/unicode/unicode.hpp"

#include <algorithm>

#include "text/unicode/code_points.hpp"

namespace llmtrain {
namespace {

struct Run {
  char32_t first;
  Category category;
  bool alternates = false;  ///< with Ll: every second code point
};

using enum Category;
constexpr Run runs[] = {
#include "text/unicode/unicode_categories.inc"
};

/// The categories are in the order of their classes.
uint16_t class_of(char32_t c, Category category) {
  if (c == '\n' || c == '\r') return char_class::newline;
  if ((c >= '\t' && c <= '\f') || c == 0x85) return char_class::other_space;  // White_Space among the controls
  if (c == '/') return char_class::slash;
  if (category == Lu || category == Lt) return char_class::upper;
  if (category == Ll) return char_class::lower;
  if (category <= Lo) return char_class::other_letter;
  if (category <= Me) return char_class::mark;
  if (category <= No) return char_class::number;
  if (category <= Po) return char_class::other_punctuation;
  if (category <= So) return char_class::symbol;
  return category <= Zp ? char_class::other_space : char_class::rest;
}

}  // namespace

UnicodeTable::UnicodeTable() {
  size_t run = 0;
  for (char32_t begin = 0; begin < code_point_limit; begin += 256) {
    Page page;
    for (char32_t c = begin; c < begin + 256; ++c) {
      if (run + 1 < std::size(runs) && runs[run + 1].first == c) ++run;
      const bool is_second = runs[run].alternates && (c - runs[run].first) % 2 != 0;
      const Category category = is_second ? Ll : runs[run].category;
      page.categories[c - begin] = category;
      page.classes[c - begin] = class_of(c, category);
    }
    const auto known = std::find(pages_.begin(), pages_.end(), page);
    page_of_[begin >> 8] = static_cast<uint16_t>(known - pages_.begin());
    if (known == pages_.end()) pages_.push_back(page);
  }
}

const UnicodeTable& UnicodeTable::get() {
  static const UnicodeTable table;
  return table;
}

}  // namespace llmtrain
