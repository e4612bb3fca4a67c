#pragma once
// Regular expressions of pre-tokenizers. There is no regex engine: a pattern is recognised by its exact text and has
// native code that is linear in the text, so that no tokenizer file can make it hang.

#include <cstddef>
#include <string_view>
#include <vector>

#include "text/split/split_scanner.hpp"

namespace llmtrain {

class SplitPattern {
 public:
  /// Returns nullptr if the regex is not known. Carriage return and newline may be written \r, \n or as themselves.
  static const SplitPattern* find(std::string_view regex);
  /// Finds a whole pre-tokenizer by its short name: gpt2, llama3, qwen2 ...; nullptr for others.
  static const SplitPattern* find_name(std::string_view name);
  /// Returns the names of all patterns, for messages.
  static std::vector<std::string_view> known();

  virtual ~SplitPattern() = default;
  std::string_view name() const { return name_; }
  /// Returns the regex as in tokenizer.json.
  std::string_view regex() const { return regex_; }

  /// Finds the first match at or after `at`: its begin and end; returns false if there is none.
  bool next(std::string_view text, size_t at, size_t& begin, size_t& end) const;
  /// Appends the words of `text`, which cover it in order: the matches of the regex and the gaps between them
  /// ("isolated"). A byte that is not part of well-formed UTF-8 counts as one character that is neither letter, number,
  /// mark, punctuation, symbol nor space.
  void split(std::string_view text, std::vector<std::string_view>& words) const;
  /// Finds the words one by one: returns the end of the word that begins at i < text.size(), which is 0 or the end of a
  /// word. Afterwards text.reached_end() tells if the text's end affected the result.
  size_t piece_end(const SplitScanner& text, size_t i) const;

 protected:
  SplitPattern(std::string_view name, std::string_view regex) : name_(name), regex_(regex) {}
  /// Returns the end of the match that begins at i < text.size(); i if there is none.
  virtual size_t match_end(const SplitScanner& text, size_t i) const = 0;
  /// Returns the next possible begin of a match if none begins at i. Patterns that look far ahead in vain skip far,
  /// which keeps split() linear.
  virtual size_t after_failure(const SplitScanner& text, size_t i) const { return i + text.at(i).length; }

 private:
  std::string_view name_;
  std::string_view regex_;
};

}  // namespace llmtrain
