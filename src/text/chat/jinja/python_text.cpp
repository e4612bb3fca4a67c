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

/// Letters whose upper case is not the letter that has them as lower case.
constexpr struct {
  char32_t lower;
  const char* upper;
} irregular_upper_cases[] = {
    {0xB5, "\xCE\x9C"},  {0xDF, "SS"},        {0x131, "I"},        {0x149, "\xCA\xBCN"},    {0x17F, "S"},
    {0x1C5, "\xC7\x84"}, {0x1C8, "\xC7\x87"}, {0x1CB, "\xC7\x8A"}, {0x1F0, "J\xCC\x8C"},    {0x1F2, "\xC7\xB1"},
    {0x3C2, "\xCE\xA3"}, {0xFB00, "FF"},      {0xFB01, "FI"},      {0xFB02, "FL"},          {0xFB03, "FFI"},
    {0xFB04, "FFL"},     {0xFB05, "ST"},      {0xFB06, "ST"},      {0x1E9E, "\xE1\xBA\x9E"}};

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

/// A capital at the start of a word: "SS" becomes "Ss", and digraphs have a form of their own.
void append_title(std::string& text, char32_t c) {
  for (const char32_t first : {0x1C4, 0x1C7, 0x1CA, 0x1F1}) {
    if (c >= first && c <= first + 2 && !(first == 0x1F1 && c == 0x1F4)) return append_code_point(text, first + 1);
  }
  std::string upper;
  append_upper(upper, c);
  size_t i = 0;
  append_code_point(text, next_code_point(upper, i));
  while (i < upper.size()) append_lower(text, next_code_point(upper, i));
}

/// A final sigma follows a letter and precedes none.
bool is_final_sigma(std::string_view text, size_t begin, size_t end) {
  const bool follows = begin > 0 && is_in_class(character_before(text, begin).code, char_class::letter);
  const bool precedes = end < text.size() && is_in_class(character_at(text, end).code, char_class::letter);
  return follows && !precedes;
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

bool is_upper(char32_t c) { return general_category(c) == Category::Lu; }
bool is_lower(char32_t c) { return general_category(c) == Category::Ll || c == 0xAA || c == 0xBA; }
bool is_alphabetic(char32_t c) { return is_in_class(c, char_class::letter); }
bool is_decimal(char32_t c) { return general_category(c) == Category::Nd; }
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
    if (wanted == Case::swapped) how = is_upper(c) ? Case::lower : Case::upper;
    in_word = is_upper(c) || is_lower(c) || general_category(c) == Category::Lt;
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

bool all_characters(std::string_view text, bool (*test)(char32_t)) {
  for (size_t i = 0; i < text.size();) {
    if (!test(next_code_point(text, i))) return false;
  }
  return !text.empty();
}

CodePointOffsets::CodePointOffsets(std::string_view text) {
  if (std::none_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) >= 0x80; })) return;
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
