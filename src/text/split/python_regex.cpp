#include "text/split/python_regex.hpp"

#include <fmt/format.h>

#include "core/error.hpp"
#include "core/files/json_reader.hpp"

namespace llmtrain {
namespace {

bool is_letter_or_digit(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

class PythonTranslator {
 public:
  PythonTranslator(std::string_view pattern, std::string_view shown) : pattern_(pattern), shown_(shown) {}

  std::string run() {
    while (i_ < pattern_.size()) {
      const bool quantified = after_interval_;
      after_interval_ = false;
      const char c = pattern_[i_];
      if (c == '\\') {
        escape(false);
      } else if (c == '[') {
        brackets();
      } else if (c == '(') {
        parenthesis();
      } else if (c == '+' && quantified) {
        refuse("a possessive {n}+");
      } else {
        after_interval_ = c == '}';
        out_ += c;
        ++i_;
      }
    }
    return out_;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw UserError(ExitCode::bad_content,
                    fmt::format("the regex {} has {}, which is not supported", printable(shown_.substr(0, 200)), what));
  }
  bool take(std::string_view text) {
    if (!pattern_.substr(i_).starts_with(text)) return false;
    i_ += text.size();
    return true;
  }

  /// Every letter that is not an escape of Python's is an error there too.
  void escape(bool in_brackets) {
    if (i_ + 1 >= pattern_.size()) refuse("a \\ at its end");
    const char c = pattern_[i_ + 1];
    const std::string_view known = in_brackets ? "dDsSwWtnvfrax" : "dDsSwWtnvfraxbBAZ123456789";
    if (is_letter_or_digit(c) && known.find(c) == std::string_view::npos) refuse(fmt::format("the escape \\{}", c));
    out_ += c == 'Z' ? "\\z" : std::string{'\\', c};
    i_ += 2;
  }

  /// A [ or && in brackets is text for Python.
  void brackets() {
    out_ += pattern_[i_++];
    if (take("^")) out_ += '^';
    for (bool first = true; first || !pattern_.substr(i_).starts_with(']'); first = false) {
      if (i_ >= pattern_.size()) refuse("a [ without ]");
      const char c = pattern_[i_];
      if (c == '\\') {
        escape(true);
        continue;
      }
      if (c == '[' || c == '&' || c == ']') out_ += '\\';
      out_ += c;
      ++i_;
    }
    out_ += pattern_[i_++];
  }

  void parenthesis() {
    if (take("(?P<")) {  // nothing refers to its name
      const size_t end = pattern_.find('>', i_);
      if (end == std::string_view::npos) refuse("a group (?P<");
      out_ += '(';
      i_ = end + 1;
    } else if (take("(?P=")) {
      refuse("a reference to a group");
    } else if (!flags()) {
      const bool named = pattern_.substr(i_).starts_with("(?<") && !pattern_.substr(i_).starts_with("(?<=") &&
                         !pattern_.substr(i_).starts_with("(?<!");
      if (named) refuse("a group (?<");
      out_ += pattern_[i_++];
    }
  }

  /// (?s) and the like mean nothing for a name, which is ASCII without line breaks; (?i) stays, and so does (?x), which
  /// is refused later.
  bool flags() {
    if (!pattern_.substr(i_).starts_with("(?")) return false;
    size_t end = i_ + 2;
    std::string kept;
    for (; end < pattern_.size() && std::string_view("aiLmsux").find(pattern_[end]) != std::string_view::npos; ++end) {
      if (pattern_[end] == 'i' || pattern_[end] == 'x') kept += pattern_[end];
    }
    if (end == i_ + 2 || end >= pattern_.size() || (pattern_[end] != ')' && pattern_[end] != ':')) return false;
    const bool group = pattern_[end] == ':';
    if (!kept.empty() || group) out_ += fmt::format("(?{}{}", kept, pattern_[end]);
    i_ = end + 1;
    return true;
  }

  std::string_view pattern_, shown_;
  size_t i_ = 0;
  bool after_interval_ = false;
  std::string out_;
};

/// Checks the pattern before it is put between others, so that a message is about what the user gave.
std::string checked(std::string_view pattern, std::string_view shown) {
  translate_regex(PythonTranslator(shown, shown).run(), "");
  return PythonTranslator(pattern, shown).run();
}

}  // namespace

PythonRegex::PythonRegex(std::string_view pattern, std::string_view shown)
    : whole_("\\A(?:" + checked(pattern, shown) + ")\\z", "", shown),
      begin_("\\A(?:" + PythonTranslator(pattern, shown).run() + ")", "", shown) {}

bool PythonRegex::matches(std::string_view text) const {
  bool found = false;
  whole_.for_matches(text, [&](size_t, size_t) { found = true; });
  return found;
}

std::optional<size_t> PythonRegex::match_end(std::string_view text) const {
  std::optional<size_t> found;
  begin_.for_matches(text, [&](size_t begin, size_t end) {
    if (begin == 0 && !found) found = end;
  });
  return found;
}

}  // namespace llmtrain
