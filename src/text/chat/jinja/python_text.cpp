#include "text/chat/jinja/python_text.hpp"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "text/chat/jinja/evaluator.hpp"
#include "text/unicode/character_sets.hpp"
#include "text/unicode/characters.hpp"
#include "text/unicode/unicode.hpp"

namespace llmtrain::jinja {
namespace {

struct IrregularCase {
  char32_t character;
  const char* text;
};
struct CharacterRange {
  char32_t first, last;
};
#include "text/chat/jinja/case_tables.inc"

template <size_t n>
bool is_in(const CharacterRange (&ranges)[n], char32_t c) {
  const auto* const after = std::upper_bound(std::begin(ranges), std::end(ranges), c,
                                             [](char32_t wanted, const auto& range) { return wanted < range.first; });
  return after != std::begin(ranges) && c <= std::prev(after)->last;
}

/// Null if the character follows the rule.
template <size_t n>
const char* irregular(const IrregularCase (&cases)[n], char32_t c) {
  const auto* const found =
      std::lower_bound(std::begin(cases), std::end(cases), c,
                       [](const auto& entry, char32_t wanted) { return entry.character < wanted; });
  return found != std::end(cases) && found->character == c ? found->text : nullptr;
}

const std::unordered_map<char32_t, std::string>& upper_cases() {
  static const std::unordered_map<char32_t, std::string> all = [] {
    std::unordered_map<char32_t, std::string> found;
    for (char32_t c = 0x1F000; c-- > 0;) {  // of several capitals the first one counts; none is above
      if (c >= 0xD800 && c < 0xE000) continue;
      const char32_t lower = lowercase(c);
      if (lower == c || c == 0x130) continue;
      std::string text;
      append_code_point(text, c);
      found[lower] = std::move(text);
    }
    for (const auto& [lower, upper] : irregular_upper_cases) found[lower] = upper;
    return found;
  }();
  return all;
}

void append_upper(std::string& text, char32_t c) {
  if (c < 0x80) {
    text += static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
    return;
  }
  const auto found = upper_cases().find(c);
  if (found == upper_cases().end()) {
    append_code_point(text, c);
  } else {
    text += found->second;
  }
}

void append_lower(std::string& text, char32_t c) {
  append_code_point(text, lowercase(c));
  if (c == 0x130) append_code_point(text, 0x307);
}

void append_lower(std::string& text, std::string_view capitals) {
  for (size_t i = 0; i < capitals.size();) append_lower(text, next_code_point(capitals, i));
}

/// A capital at the start of a word: "SS" becomes "Ss".
void append_title(std::string& text, char32_t c) {
  if (const char* title = irregular(irregular_title_cases, c)) {
    text += title;
    return;
  }
  std::string upper;
  append_upper(upper, c);
  size_t i = 0;
  append_code_point(text, next_code_point(upper, i));
  append_lower(text, std::string_view(upper).substr(i));
}

/// Unicode's Case_Ignorable: marks and signs inside of words.
bool is_ignorable(char32_t c) {
  constexpr std::u32string_view signs =
      U"'.:^`\u00B7\u0387\u055F\u05F4\u2018\u2019\u2024\u2027\uFE13\uFE52\uFE55\uFF07\uFF0E\uFF1A";
  constexpr Category categories[] = {Category::Mn, Category::Me, Category::Cf, Category::Lm, Category::Sk};
  return signs.find(c) != std::u32string_view::npos ||
         std::ranges::find(categories, general_category(c)) != std::end(categories);
}

/// A final sigma follows a letter with case and precedes none, whatever ignorable characters are between.
bool is_final_sigma(std::string_view text, size_t begin, size_t end) {
  bool follows = false;
  while (begin > 0) {
    const Character c = character_before(text, begin);
    begin -= c.length;
    if (is_ignorable(c.code)) continue;
    follows = is_cased(c.code);
    break;
  }
  while (follows && end < text.size()) {
    const char32_t c = next_code_point(text, end);
    if (!is_ignorable(c)) return !is_cased(c);
  }
  return follows;
}

}  // namespace

bool is_python_space(char32_t c) { return is_white_space(c) || (c >= 0x1C && c <= 0x1F); }

size_t skip_python_spaces(std::string_view text, size_t at) {
  while (at < text.size()) {
    const Character c = character_at(text, at);
    if (!is_python_space(c.code)) break;
    at += c.length;
  }
  return at;
}

size_t strip_python_spaces_right(std::string_view text, size_t begin, size_t end) {
  while (end > begin) {
    const Character c = character_before(text, end);
    if (!is_python_space(c.code)) break;
    end -= c.length;
  }
  return end;
}

size_t find_text(Evaluator& evaluator, std::string_view text, std::string_view wanted, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  const std::string_view rest = text.substr(from);
  const void* found = wanted.empty() ? rest.data() : memmem(rest.data(), rest.size(), wanted.data(), wanted.size());
  const size_t place =
      found == nullptr ? std::string_view::npos : static_cast<size_t>(static_cast<const char*>(found) - text.data());
  const size_t read = std::min(place, text.size()) - from;
  evaluator.charge(static_cast<int64_t>(read / 32 * (1 + std::min<size_t>(wanted.size(), 256) / 32)));
  return place;
}

size_t find_last_text(Evaluator& evaluator, std::string_view text, std::string_view wanted) {
  evaluator.charge(static_cast<int64_t>(text.size() / 32 * (1 + wanted.size() / 32)));
  return text.rfind(wanted);
}

bool is_upper(char32_t c) { return general_category(c) == Category::Lu || is_in(more_upper, c); }
bool is_lower(char32_t c) { return general_category(c) == Category::Ll || is_in(more_lower, c); }
bool is_titlecase(char32_t c) { return general_category(c) == Category::Lt; }
bool is_cased(char32_t c) { return is_upper(c) || is_lower(c) || is_titlecase(c); }
bool is_printable(char32_t c) {
  if (c == ' ') return true;
  const Category category = general_category(c);
  return category < Category::Zs;
}

std::string with_case(std::string_view text, Case wanted) {
  std::string result;
  bool in_word = false;
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    const char32_t c = next_code_point(text, i);
    Case how = wanted;
    if (wanted == Case::capitalized) how = begin == 0 ? Case::title : Case::lower;
    if (wanted == Case::title && in_word) how = Case::lower;
    in_word = is_cased(c);
    if (how == Case::upper) {
      append_upper(result, c);
    } else if (how == Case::title) {
      append_title(result, c);
    } else if (c == 0x3A3 && is_final_sigma(text, begin, i)) {
      append_code_point(result, 0x3C2);
    } else {
      append_lower(result, c);
    }
  }
  return result;
}

CodePointOffsets::CodePointOffsets(std::string_view text) {
  if (std::ranges::none_of(text, [](char c) { return static_cast<uint8_t>(c) >= 0x80; })) return;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!is_utf8_continuation(text[i])) offsets_.push_back(i);
  }
  offsets_.push_back(text.size());
}

int64_t CodePointOffsets::index_of(size_t byte) const {
  if (offsets_.empty()) return static_cast<int64_t>(byte);
  return std::lower_bound(offsets_.begin(), offsets_.end(), byte) - offsets_.begin();
}

Value character_of(Evaluator& evaluator, const MarkedText& text, int64_t index) {
  evaluator.charge(static_cast<int64_t>(text.size() / 32));
  const CodePointOffsets offsets(text.bytes());
  const int64_t size = count_code_points(text.bytes());
  const int64_t place = index < 0 ? index + size : index;
  if (place < 0 || place >= size) return Value::undefined("the str has no such element");
  return text.slice(offsets.at(place), offsets.at(place + 1));
}

}  // namespace llmtrain::jinja
