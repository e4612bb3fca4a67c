#pragma once
// Regular expressions that tokenizers cut text into words with. Not a regex engine: a pattern is recognised by its
// exact text and matched by code of its own in time linear in the text, so that no tokenizer file can make it hang.

#include <cstddef>
#include <string_view>
#include <vector>

#include "text/split/split_scanner.hpp"

namespace llmtrain {

class SplitPattern {
 public:
  /// nullptr when the regex is none of the known ones. Carriage return and newline may be written \r, \n or as
  /// themselves.
  static const SplitPattern* find(std::string_view regex);
  /// By the short name of a whole pre-tokenizer: gpt2, llama3, qwen2 ...; nullptr for others.
  static const SplitPattern* find_name(std::string_view name);
  /// Names of all patterns, for messages.
  static std::vector<std::string_view> known();

  virtual ~SplitPattern() = default;
  std::string_view name() const { return name_; }
  /// The regex as tokenizer.json has it.
  std::string_view regex() const { return regex_; }

  /// The first match at or after `at`: its begin and end, or false when there is none.
  bool next(std::string_view text, size_t at, size_t& begin, size_t& end) const;
  /// Appends the pieces of `text`, all of it in order: what the regex matches and the gaps between ("isolated"). A byte
  /// that is not part of well-formed UTF-8 counts as one character that is neither letter, number, mark, punctuation,
  /// symbol nor space.
  void split(std::string_view text, std::vector<std::string_view>& pieces) const;
  /// The same one by one: the end of the piece that begins at i < text.size(), where 0 or the end of a piece is. What
  /// text.reached_end() says afterwards is whether the text's end had a part in it.
  size_t piece_end(const SplitScanner& text, size_t i) const;

 protected:
  SplitPattern(std::string_view name, std::string_view regex) : name_(name), regex_(regex) {}
  /// End of the match that begins at i < text.size(); i when there is none.
  virtual size_t match_end(const SplitScanner& text, size_t i) const = 0;
  /// Where a match may begin next when none begins at i. Patterns that look far ahead in vain go far: split() is
  /// linear.
  virtual size_t after_failure(const SplitScanner& text, size_t i) const { return i + text.at(i).length; }

 private:
  std::string_view name_;
  std::string_view regex_;
};

}  // namespace llmtrain
