// Brackets of regular expressions: sets of characters, their intersections and members.

#include "text/split/regex_translator.hpp"

namespace llmtrain {

std::string RegexTranslator::brackets(const Options& options) {
  bool negated = false;
  const BracketMembers members = read_brackets(options, 0, negated);
  const std::string text = members.as_text ? members.text : text_of(members.set);
  if (text.empty()) return negated ? "[\\x{0}-\\x{D7FF}\\x{E000}-\\x{10FFFF}]" : "(?!)";
  return options.fold ? "(?i:" + bracketed(text, negated) + ")" : bracketed(text, negated);
}

BracketMembers RegexTranslator::read_brackets(const Options& options, int depth, bool& negated) {
  if (depth > max_pattern_depth) refuse("is nested too deeply");
  ++i_;
  negated = take("^");
  BracketMembers all, part;
  bool intersects = false;
  for (bool first = true;; first = false) {
    if (at_end()) refuse("has a [ without ]");
    if (is(']') && !first) break;
    if (take("&&")) {
      intersect(part, all, intersects);
      intersects = true;
      part = {};
    } else {
      member(options, depth, part);
    }
  }
  ++i_;
  if (!intersects) {
    part.set.normalize();
    return part;
  }
  intersect(part, all, true);
  return all;
}

void RegexTranslator::intersect(BracketMembers& part, BracketMembers& all, bool intersects) {
  part.set.normalize();
  all.set = intersects ? all.set.intersection(part.set) : part.set;
  all.as_text = false;
}

void RegexTranslator::add(const KnownSet& known, bool negated, BracketMembers& to) {
  const CodePointSet outside = negated ? known.set.complement() : CodePointSet();
  to.text += negated ? text_of(outside) : known.text;
  to.set.add(negated ? outside : known.set);
}

void RegexTranslator::member(const Options& options, int depth, BracketMembers& to) {
  if (starts("[:") && pattern_.find(":]", i_) != std::string_view::npos) {
    const size_t end = pattern_.find(":]", i_);
    std::string_view name = pattern_.substr(i_ + 2, end - i_ - 2);
    const bool negated = name.starts_with('^');
    if (negated) name.remove_prefix(1);
    constexpr std::array<std::string_view, 14> names = {"alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph",
                                                        "lower", "print", "punct", "space", "upper", "word",  "xdigit"};
    if (std::ranges::find(names, name) == names.end()) refuse_construct(fmt::format("[:{}:]", printable(name)));
    check_case(options, name);
    const KnownSet* set = known_set(name == "punct" ? posix_punct_name : name);
    i_ = end + 2;
    return add(*set, negated, to);
  }
  if (is('[')) {
    bool negated = false;
    BracketMembers inner = read_brackets(options, depth + 1, negated);
    const CodePointSet set = negated ? inner.set.complement() : inner.set;
    to.text += negated || !inner.as_text ? text_of(set) : inner.text;
    to.set.add(set);
    return;
  }
  if (is('\\') && set_escape(options, to)) return;
  const char32_t first = single(options);
  char32_t last = first;
  const bool range = is('-') && i_ + 1 < pattern_.size() && pattern_[i_ + 1] != ']';
  if (range) {
    ++i_;
    if (is('[') || (is('\\') && i_ + 1 < pattern_.size() &&
                    std::string_view("wWsSdDhHpP").find(pattern_[i_ + 1]) != std::string_view::npos)) {
      refuse_construct("has a range that ends in a set");
    }
    last = single(options);
    if (last < first) refuse("has a range that runs backwards");
  }
  CodePointSet set;
  if (first <= 0xD7FF) set.add(first, std::min(last, char32_t{0xD7FF}));
  if (last >= 0xE000) set.add(std::max(first, char32_t{0xE000}), last);
  to.text += text_of(set);
  to.set.add(set);
}

bool RegexTranslator::set_escape(const Options& options, BracketMembers& to) {
  const char letter = i_ + 1 < pattern_.size() ? pattern_[i_ + 1] : '\0';
  if (const KnownSet* set = class_escape(letter, true)) {
    i_ += 2;
    add(*set, letter < 'a', to);
    return true;
  }
  if ((letter != 'p' && letter != 'P') || !pattern_.substr(i_ + 2).starts_with('{')) return false;
  i_ += 2;
  check_case(options, pattern_.substr(i_ + 1, pattern_.find('}', i_) - i_ - 1));
  bool negated = letter == 'P';
  const KnownSet& set = property(negated, true);
  add(set, negated, to);
  return true;
}

char32_t RegexTranslator::single(const Options& options) {
  char32_t c = 0;
  if (take("\\")) {
    if (at_end()) refuse("ends with a \\");
    if (take("b")) {
      c = 8;
    } else if (!character_escape(c)) {
      refuse_construct(fmt::format("the escape \\{} in brackets", pattern_.substr(i_, 1)));
    }
  } else {
    c = next_character();
  }
  folded_ = {};
  if (options.fold && c >= 0x80) check_folding(c);
  folded_ = {};
  return c;
}

}  // namespace llmtrain
