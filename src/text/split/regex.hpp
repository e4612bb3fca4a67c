#pragma once
// Arbitrary regular expressions. Those of a tokenizer.json are written for Oniguruma, which the tokenizers package
// uses; PCRE2 matches them here. Syntax with the same meaning is passed on, syntax with another meaning is translated,
// and the rest is refused by name, so that no text is split differently than by the package. Those of a deck are
// PCRE2's.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace llmtrain {

/// Translates Oniguruma's syntax to PCRE2's. Throws UserError(bad_content) "place: the regex ...: unknown construct, at
/// which byte".
std::string translate_regex(std::string_view pattern, const std::string& place);

class Regex {
 public:
  enum class Syntax : uint8_t { oniguruma, perl };

  /// `place` begins messages, which name the file and key; `shown` is the pattern in them.
  Regex(const std::string& pattern, const std::string& place) : Regex(pattern, place, pattern) {}
  Regex(const std::string& pattern, const std::string& place, std::string_view shown);
  /// With Syntax::perl, ^ and $ are the ends of the text and a dot is not a line break, unless the pattern has (?m),
  /// (?s).
  Regex(const std::string& pattern, const std::string& place, Syntax syntax);
  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  /// Calls match(begin, end) for all matches of a text from left to right. An empty match never directly follows a
  /// match. Bytes that are not UTF-8 count as U+FFFD. Throws UserError(bad_content) if the pattern takes too long.
  template <class Match>
  void for_matches(std::string_view text, const Match& match) const {
    Search search(*this, text);
    size_t begin = 0, end = 0;
    while (search.next(begin, end)) match(begin, end);
  }
  /// Returns whether the text has a match, or nothing if the pattern takes too many steps: the same for any load of the
  /// machine. Only with Syntax::perl.
  std::optional<bool> found_in(std::string_view text) const;

 private:
  void compile(const std::string& pattern, uint32_t options);

  struct Code;
  struct State;
  class Search {
   public:
    Search(const Regex& regex, std::string_view text, bool by_steps = false);
    ~Search();
    bool next(size_t& begin, size_t& end);
    bool gave_up() const;

   private:
    std::unique_ptr<State> state_;
  };

  std::string name_;  ///< in messages
  std::unique_ptr<Code> code_;
};

}  // namespace llmtrain
