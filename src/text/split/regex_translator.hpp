#pragma once
// Translator from Oniguruma's syntax to PCRE2's, for regex_translator.cpp and regex_brackets.cpp alone,
// which define some of its functions.

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "core/utf8.hpp"
#include "text/split/regex.hpp"
#include "text/split/regex_sets.hpp"
#include "text/unicode/character_sets.hpp"
#include "text/unicode/code_point_set.hpp"
#include "text/unicode/code_points.hpp"
#include "text/unicode/unicode.hpp"

namespace llmtrain {

inline constexpr size_t max_pattern_bytes = size_t{1} << 16;  ///< bytes
inline constexpr int max_pattern_depth = 100;

/// Members of brackets: as text if PCRE2 accepts it, and as a set.
struct BracketMembers {
  std::string text;
  CodePointSet set;
  bool as_text = true;
};

class RegexTranslator {
 public:
  RegexTranslator(std::string_view pattern, const std::string& place) : pattern_(pattern), place_(place) {}

  std::string run() {
    if (pattern_.size() > max_pattern_bytes) refuse(fmt::format("is longer than {} bytes", max_pattern_bytes));
    if (find_invalid_utf8(pattern_) != std::string_view::npos) refuse("is not UTF-8");
    const std::string out = alternatives({}, 0);
    if (i_ < pattern_.size()) refuse("has a ) without (");
    return out;
  }

 private:
  struct Options {
    bool fold = false;      // (?i)
    bool any_line = false;  // (?m): a dot matches \n
  };
  struct Atom {
    std::string text;
    bool repeats = true;      // can take a quantifier
    bool may_be_bare = true;  // one unit for a quantifier
  };

  [[noreturn]] void refuse(const std::string& what) const {
    throw UserError(ExitCode::bad_content,
                    fmt::format("{}{}the regex {}, at byte {}, {}", place_, place_.empty() ? "" : ": ",
                                printable(pattern_.substr(0, 200)), i_, what));
  }
  [[noreturn]] void refuse_construct(std::string_view construct) const {
    refuse(fmt::format("has {}, which is not supported", construct));
  }
  bool at_end() const { return i_ >= pattern_.size(); }
  bool is(char c) const { return !at_end() && pattern_[i_] == c; }
  bool starts(std::string_view text) const { return pattern_.substr(i_).starts_with(text); }
  bool take(std::string_view text) {
    if (!starts(text)) return false;
    i_ += text.size();
    return true;
  }
  char32_t next_character() {
    if (at_end()) refuse("ends within a construct");
    return next_code_point(pattern_, i_);
  }

  struct Repeat {
    std::string text;  // empty: none
    bool may_vary = true;
  };

  std::string alternatives(Options options, int depth) {
    if (depth > max_pattern_depth) refuse("is nested too deeply");
    std::string out;
    folded_ = {};
    while (!at_end() && !is(')')) {
      if (take("|")) {
        out += '|';
        folded_ = {};
      } else {
        term(options, depth, out);
      }
    }
    return out;
  }

  void term(Options& options, int depth, std::string& out) {
    if (starts("(?")) {
      const size_t begin = i_;
      Options inner = options;
      if (isolated_options(inner)) {  // extends to the end of the group, over its alternatives
        out += group("(?:", inner, depth, false);
        return;
      }
      i_ = begin;
    }
    quantified(atom(options, depth), out);
  }

  /// Reads (?i); returns false for anything else.
  bool isolated_options(Options& options) {
    if (!take("(?") || !read_flags(options)) return false;
    return take(")");
  }
  bool read_flags(Options& options) {
    bool on = true;
    for (const size_t begin = i_; !at_end(); ++i_) {
      const char c = pattern_[i_];
      if (c == '-') {
        on = false;
      } else if (c == 'i') {
        options.fold = on;
      } else if (c == 'm') {
        options.any_line = on;
      } else {
        return i_ > begin && (c == ')' || c == ':');
      }
    }
    return false;
  }

  std::string group(std::string_view opening, const Options& options, int depth, bool closes = true) {
    const std::string inner = alternatives(options, depth + 1);
    if (closes && !take(")")) refuse("has a ( without )");
    folded_ = {};
    return std::string(opening).append(inner).append(")");
  }

  Atom parenthesis(const Options& options, int depth) {
    constexpr std::array<std::string_view, 6> plain = {"(?:", "(?>", "(?=", "(?!", "(?<=", "(?<!"};
    for (const std::string_view opening : plain) {
      if (!take(opening)) continue;
      const bool looks = opening.find_first_of("=!") != std::string_view::npos;
      return {group(opening, options, depth), !looks};
    }
    if (starts("(?")) {
      const size_t begin = i_;
      Options inner = options;
      i_ += 2;
      if (read_flags(inner) && take(":")) return {group("(?:", inner, depth)};
      i_ = begin;
      refuse_construct(fmt::format("the group {}...", pattern_.substr(i_, 3)));
    }
    if (starts("(*")) refuse_construct("a callout (*...)");
    ++i_;
    return {group("(", options, depth)};
  }

  Atom atom(const Options& options, int depth) {
    const char c = pattern_[i_];
    if (c != '\\' && (c == '(' || c == '[' || c == '.' || c == '^' || c == '$')) {
      folded_ = {};
      if (c == '(') return parenthesis(options, depth);
      if (c == '[') return {brackets(options)};
      ++i_;
      if (c == '.') return {options.any_line ? "[\\x{0}-\\x{D7FF}\\x{E000}-\\x{10FFFF}]" : "[^\\n]"};
      return {std::string(1, c), false};
    }
    if (c == '*' || c == '+' || c == '?') refuse("repeats nothing");
    if (c == '\\') return escape(options);
    return literal(next_character(), options);
  }

  Atom literal(char32_t c, const Options& options) {
    if (!options.fold) return {fmt::format("\\x{{{:X}}}", static_cast<uint32_t>(c))};
    check_folding(c);
    return {fmt::format("(?i:\\x{{{:X}}})", static_cast<uint32_t>(c))};
  }
  /// Oniguruma compares one character with several, as in Unicode's full case folding; PCRE2 does not.
  void check_folding(char32_t c) {
    constexpr std::array<std::u32string_view, 5> pairs = {U"ss", U"ff", U"fi", U"fl", U"st"};
    constexpr std::u32string_view several = U"\u00DF\u0130\u0149\u01F0\u0390\u03B0\u02BC\u02BE\u1E9E";
    const bool many = several.find(c) != std::u32string_view::npos || is_mark(c) || (c >= 0x530 && c <= 0x58F) ||
                      (c >= 0x1E96 && c <= 0x1E9A) || (c >= 0x1F50 && c <= 0x1FFF) || (c >= 0xFB00 && c <= 0xFB17);
    folded_ += lowercase(c == 0x17F ? U's' : c);
    const bool pair = folded_.size() > 1 && std::ranges::find(pairs, folded_.substr(folded_.size() - 2)) != pairs.end();
    if (many || pair) {
      refuse_construct("under (?i) letters of which some together equal a single one (ss and U+00DF)");
    }
  }

  static std::string bracketed(const std::string& members, bool negated) {
    return (negated ? "[^" : "[") + members + "]";
  }
  /// Reads \w and similar classes, outside of brackets or within.
  const KnownSet* class_escape(char c, bool in_brackets) const {
    switch (c) {
      case 'w':
      case 'W':
        return known_set(in_brackets ? "word" : bare_word_name);
      case 's':
      case 'S':
        return known_set("space");
      case 'd':
      case 'D':
        return known_set("Nd");
      case 'h':
      case 'H':
        return known_set("xdigit");
      default:
        return nullptr;
    }
  }
  /// {name}, {^name} after \p or \P.
  const KnownSet& property(bool& negated, bool in_brackets) {
    const size_t end = pattern_.find('}', i_);
    if (end == std::string_view::npos) refuse("has a \\p{ without }");
    std::string_view name = pattern_.substr(i_ + 1, end - i_ - 1);
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    const KnownSet* set = known_set(name);
    if (set != nullptr && !in_brackets && set->set.ranges() == known_set("word")->set.ranges()) {
      set = known_set(bare_word_name);
    }
    if (set == nullptr) refuse_construct(fmt::format("the property {}", printable(name)));
    i_ = end + 1;
    return *set;
  }
  void check_case(const Options& options, std::string_view name) const {
    if (options.fold && is_name_of_case(name.starts_with('^') ? name.substr(1) : name)) {
      refuse_construct("a property of upper or lower case under (?i)");
    }
  }

  // ---- escapes: regex_translator.cpp

  /// Reads a character by its escape; returns false if the escape means something else.
  bool character_escape(char32_t& c);
  static bool is_alphanumeric(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  }
  char32_t hexadecimal(size_t begin, size_t end) const;
  Atom escape(const Options& options);

  // ---- brackets: regex_brackets.cpp

  std::string brackets(const Options& options);
  BracketMembers read_brackets(const Options& options, int depth, bool& negated);
  static void intersect(BracketMembers& part, BracketMembers& all, bool intersects);
  static void add(const KnownSet& known, bool negated, BracketMembers& to);
  void member(const Options& options, int depth, BracketMembers& to);
  bool set_escape(const Options& options, BracketMembers& to);
  char32_t single(const Options& options);

  // ---- quantifiers

  /// Reads {2}, {2,}, {,2}, {2,3}; any other { is a character.
  bool interval(Repeat& repeat) {
    size_t at = i_ + 1;
    const auto number = [&](std::string& digits) {
      while (at < pattern_.size() && pattern_[at] >= '0' && pattern_[at] <= '9') digits += pattern_[at++];
      return !digits.empty();
    };
    std::string least, most;
    const bool has_least = number(least);
    const bool has_comma = at < pattern_.size() && pattern_[at] == ',';
    if (has_comma) ++at;
    const bool has_most = has_comma && number(most);
    if (at >= pattern_.size() || pattern_[at] != '}' || (!has_least && !has_most)) return false;
    if (least.size() > 5 || most.size() > 5) refuse("repeats something more than 99999 times");
    if (has_least && has_most && std::stoi(most) < std::stoi(least)) refuse("has an interval that runs backwards");
    i_ = at + 1;
    repeat.text = "{" + (has_least ? least : "0") + (has_comma ? "," + most : "") + "}";
    repeat.may_vary = has_comma;
    return true;
  }

  /// Every repetition that can backtrack is followed by (?C), where the steps are counted.
  void quantified(Atom atom, std::string& out) {
    for (bool repeated = false; !at_end(); repeated = true) {
      Repeat repeat;
      const char c = pattern_[i_];
      const bool sign = c == '*' || c == '+' || c == '?';
      if (sign) {
        ++i_;
        repeat.text = c;
      } else if (c != '{' || !interval(repeat)) {
        break;
      }
      folded_ = {};
      if (!atom.repeats) refuse_construct("a repetition of an empty match");
      if (repeated) atom.text = "(?:" + atom.text + ")";
      bool counts = repeat.may_vary;
      atom.text += repeat.text;
      if ((sign || repeat.may_vary) && take("?")) {
        atom.text += '?';
      } else if (sign && take("+")) {  // a + after an interval is another repetition
        atom.text += '+';
        counts = false;
      }
      if (counts) atom.text = "(?:" + atom.text + "(?C))";
    }
    out += atom.text;
  }

  std::string_view pattern_;
  const std::string& place_;
  size_t i_ = 0;
  std::u32string folded_;  // letters in a row under (?i)
};

}  // namespace llmtrain
