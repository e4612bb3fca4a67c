#pragma once
// Characters of a text and their classes, for the matchers of split patterns.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "text/unicode/unicode.hpp"

namespace llmtrain {

/// Comparison of letters after an apostrophe: (?i:...) of Unicode also accepts U+017F for s.
enum class Fold : uint8_t { none, ascii, unicode };

class SplitScanner {
 public:
  struct Character {
    char32_t code;
    uint16_t classes;  ///< one bit of char_class
    size_t length;     ///< bytes
  };
  static constexpr size_t no_limit = SIZE_MAX;

  explicit SplitScanner(std::string_view text) : text_(text) {}

  std::string_view text() const { return text_; }
  size_t size() const { return text_.size(); }
  bool is(size_t i, char byte) const { return !ends(i) && text_[i] == byte; }

  /// Returns true if the text ends at i. Matchers call it before they read at i, so that the influence of the end is
  /// known.
  bool ends(size_t i) const {
    if (i < text_.size()) return false;
    reached_end_ = true;
    return true;
  }
  /// Returns true if a continuation of the text could have changed a match since the last forget_end().
  bool reached_end() const { return reached_end_; }
  void forget_end() const { reached_end_ = false; }

  /// Returns the character at i < size(). A byte that is not part of well-formed UTF-8 is one character of class rest.
  Character at(size_t i) const {
    const auto lead = static_cast<uint8_t>(text_[i]);
    return lead < 0x80 ? Character{lead, table_.char_class(lead), 1} : long_character(i, lead);
  }
  /// Returns true if a character of `classes` is at i.
  bool has(size_t i, uint16_t classes) const { return !ends(i) && (at(i).classes & classes) != 0; }

  /// Returns the end of the longest run of characters of `classes` that begins at i; at most `limit` characters.
  size_t run_end(size_t i, uint16_t classes, size_t limit = no_limit) const {
    for (; limit > 0 && !ends(i); --limit) {
      const Character c = at(i);
      if ((c.classes & classes) == 0) break;
      i += c.length;
    }
    return i;
  }

  /// Returns the end of 's, 't, 're, 've, 'm, 'll or 'd at i; i if there is none.
  size_t contraction_end(size_t i, Fold fold) const;

  /// Matches \s+(?!\S)|\s+ and, with `lines`, \s*[\r\n]+ before them. Returns i if there is no space at i.
  size_t space_end(size_t i, bool lines) const;

 private:
  Character long_character(size_t i, uint8_t lead) const;

  std::string_view text_;
  const UnicodeTable& table_ = UnicodeTable::get();
  mutable bool reached_end_ = false;
};

}  // namespace llmtrain
