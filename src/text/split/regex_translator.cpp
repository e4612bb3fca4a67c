// Translation of Oniguruma's syntax to PCRE2's.

#include "text/split/regex_translator.hpp"

#include <charconv>

namespace llmtrain {

std::string translate_regex(std::string_view pattern, const std::string& place) {
  return RegexTranslator(pattern, place).run();
}

bool RegexTranslator::character_escape(char32_t& c) {
  constexpr std::array<std::pair<char, char32_t>, 7> controls = {
      {{'t', 9}, {'n', 10}, {'v', 11}, {'f', 12}, {'r', 13}, {'a', 7}, {'e', 27}}};
  const char letter = pattern_[i_];
  for (const auto& [name, code] : controls) {
    if (letter != name) continue;
    ++i_;
    c = code;
    return true;
  }
  if (letter == 'x' && pattern_.substr(i_ + 1).starts_with('{')) {
    const size_t end = std::min(pattern_.find('}', i_), pattern_.size());
    c = hexadecimal(i_ + 2, end);
    i_ = end + 1;
    return true;
  }
  if (letter == 'x' || letter == 'u') {
    const size_t digits = letter == 'x' ? 2 : 4;
    c = hexadecimal(i_ + 1, i_ + 1 + digits);
    if (letter == 'x' && c >= 0x80) refuse_construct("a byte that is not a character");
    i_ += 1 + digits;
    return true;
  }
  if (is_alphanumeric(letter)) return false;
  c = next_character();
  return true;
}

char32_t RegexTranslator::hexadecimal(size_t begin, size_t end) const {
  uint32_t code = 0;
  const char* first = pattern_.data() + std::min(begin, pattern_.size());
  const char* last = pattern_.data() + std::min(end, pattern_.size());
  const auto [stop, error] = std::from_chars(first, last, code, 16);
  const bool good = error == std::errc() && stop == last && first < last && code < code_point_limit;
  if (!good || (code >= 0xD800 && code <= 0xDFFF)) refuse("has an escape that is not a character");
  return code;
}

RegexTranslator::Atom RegexTranslator::escape(const Options& options) {
  ++i_;
  if (at_end()) refuse("ends with a \\");
  char32_t c = 0;
  if (character_escape(c)) return literal(c, options);
  const char letter = pattern_[i_];
  folded_ = {};
  if (const KnownSet* set = class_escape(letter, false)) {
    ++i_;
    return {bracketed(set->text, letter < 'a')};
  }
  if ((letter == 'p' || letter == 'P') && pattern_.substr(i_ + 1).starts_with('{')) {
    ++i_;
    check_case(options, pattern_.substr(i_ + 1, pattern_.find('}', i_) - i_ - 1));
    bool negated = letter == 'P';
    const KnownSet& set = property(negated, false);
    return {bracketed(set.text, negated)};
  }
  ++i_;
  const std::string& word = known_set(bare_word_name)->text;
  const auto border = [&](std::string_view same, std::string_view other) {
    return fmt::format("(?:(?<=[{0}])(?{1}[{0}])|(?<![{0}])(?{2}[{0}]))", word, same, other);
  };
  switch (letter) {
    case 'A':
    case 'z':
    case 'Z':
      return {std::string("\\") + letter, false};
    case 'b':
      return {border("!", "="), false};
    case 'B':
      return {border("=", "!"), false};
    default:
      break;
  }
  --i_;
  refuse_construct(fmt::format("the escape \\{}", pattern_.substr(i_, 1)));
}

}  // namespace llmtrain
