#include "text/unicode/unicode.hpp"

#include <algorithm>

#include "text/unicode/code_points.hpp"

namespace llmtrain {
namespace {

struct Run {
  char32_t first;
  Category category;
};

using enum Category;
constexpr Run runs[] = {
#include "text/unicode/unicode_categories.inc"
};

uint16_t class_of(char32_t c, Category category) {
  if (c == '\n' || c == '\r') return char_class::newline;
  if ((c >= '\t' && c <= '\f') || c == 0x85) return char_class::other_space;  // White_Space among the controls
  if (c == '/') return char_class::slash;
  switch (category) {
    case Lu:
    case Lt:
      return char_class::upper;
    case Ll:
      return char_class::lower;
    case Lm:
    case Lo:
      return char_class::other_letter;
    case Mn:
    case Mc:
    case Me:
      return char_class::mark;
    case Nd:
    case Nl:
    case No:
      return char_class::number;
    case Pc:
    case Pd:
    case Ps:
    case Pe:
    case Pi:
    case Pf:
    case Po:
      return char_class::other_punctuation;
    case Sm:
    case Sc:
    case Sk:
    case So:
      return char_class::symbol;
    case Zs:
    case Zl:
    case Zp:
      return char_class::other_space;
    default:
      return char_class::rest;
  }
}

}  // namespace

UnicodeTable::UnicodeTable() {
  size_t run = 0;
  for (char32_t begin = 0; begin < code_point_limit; begin += 256) {
    Page page;
    for (char32_t c = begin; c < begin + 256; ++c) {
      if (run + 1 < std::size(runs) && runs[run + 1].first == c) ++run;
      page.categories[c - begin] = runs[run].category;
      page.classes[c - begin] = class_of(c, runs[run].category);
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
