// Escapes of regular expressions: characters, classes, references to groups and calls of groups.

#include "text/split/regex_translator.hpp"

namespace llmtrain {

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
  const size_t control = letter == 'c' ? 1 : pattern_.substr(i_).starts_with("C-") ? 2 : 0;
  if (control > 0 && i_ + control < pattern_.size() && is_alphanumeric(pattern_[i_ + control])) {
    c = static_cast<char32_t>(pattern_[i_ + control] & 0x1F);
    i_ += control + 1;
    return true;
  }
  if (letter == '0') return octal_escape(c);
  if (is_alphanumeric(letter)) return false;
  c = next_character();
  return true;
}

bool RegexTranslator::octal_escape(char32_t& c) {
  const size_t begin = i_;
  for (c = 0; i_ < std::min(begin + 3, pattern_.size()) && pattern_[i_] >= '0' && pattern_[i_] <= '7'; ++i_) {
    c = 8 * c + static_cast<char32_t>(pattern_[i_] - '0');
  }
  if (c >= 0x80) refuse_construct("a byte that is not a character");
  return i_ > begin;
}

bool RegexTranslator::octal_outside_brackets(char32_t& c) {
  size_t end = i_;
  while (end < std::min(i_ + 6, pattern_.size()) && pattern_[end] >= '0' && pattern_[end] <= '9') ++end;
  if (named_ || end - i_ < 2 || end - i_ > 5) return false;
  const size_t number = std::stoul(std::string(pattern_.substr(i_, end - i_)));
  return number > std::max<size_t>(groups_.size(), 9) && octal_escape(c);
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
  if (character_escape(c) || octal_outside_brackets(c)) return literal(c, options);
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
    case 'N':
      return {"[^\\n]"};
    case 'O':
      return {"[\\x{0}-\\x{D7FF}\\x{E000}-\\x{10FFFF}]"};
    case 'R':
      return {"(?>\\x{D}\\x{A}|[\\x{A}-\\x{D}\\x{85}\\x{2028}\\x{2029}])"};
    case 'A':
    case 'z':
    case 'Z':
      return {std::string("\\") + letter, false};
    case 'b':
      return {border("!", "="), false};
    case 'B':
      return {border("=", "!"), false};
    case 'k':
      return back_reference(options);
    case 'g':
      return group_call();
    default:
      break;
  }
  if (letter >= '1' && letter <= '9' && !named_ && (at_end() || !(pattern_[i_] >= '0' && pattern_[i_] <= '9'))) {
    if (static_cast<size_t>(letter - '0') > groups_.size()) refuse("refers to a group that is not before it");
    refers_ = true;
    return {folding(fmt::format("\\g{{{}}}", letter), options)};
  }
  --i_;
  refuse_construct(fmt::format("the escape \\{}", pattern_.substr(i_, 1)));
}

RegexTranslator::Atom RegexTranslator::back_reference(const Options& options) {
  const size_t end = pattern_.find('>', i_);
  if (!is('<') || end == std::string_view::npos) refuse_construct("the escape \\k");
  const std::string name(pattern_.substr(i_ + 1, end - i_ - 1));
  if (name.empty() || std::ranges::find(groups_, name) == groups_.end()) {
    refuse("refers to a group that is not before it");
  }
  i_ = end + 1;
  refers_ = true;
  return {folding("\\k<" + name + ">", options)};
}

RegexTranslator::Atom RegexTranslator::group_call() {
  const size_t end = pattern_.find('>', i_);
  if (!is('<') || end == std::string_view::npos) refuse_construct("the escape \\g");
  const std::string name(pattern_.substr(i_ + 1, end - i_ - 1));
  const bool number = name.size() == 1 && name[0] >= '1' && name[0] <= '9';
  const auto place = number ? static_cast<size_t>(name[0] - '1')
                            : static_cast<size_t>(std::ranges::find(groups_, name) - groups_.begin());
  const bool ended = !name.empty() && number != named_ && place < groups_.size() && closed_[place];
  if (!ended || (named_ && std::ranges::count(groups_, name) > 1)) {
    refuse_construct("a call of a group that does not end before it");
  }
  i_ = end + 1;
  calls_ = true;
  return {number ? "(?" + name + ")" : "(?&" + name + ")"};
}

}  // namespace llmtrain
