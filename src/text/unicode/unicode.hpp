#pragma once
// What kind of character a code point is: Unicode 16.0, the version that the tokenizers package (Oniguruma) and
// tiktoken split text by. The table is part of the sources, not of a library, because a text must give the same tokens
// on every machine: distributions carry other versions of Unicode (Debian 12: 15.0), in which other characters are
// letters.

#include <array>
#include <cstdint>
#include <vector>

namespace llmtrain {

/// Unicode's general categories; Cn is unassigned.
enum class Category : uint8_t {
  Lu,
  Ll,
  Lt,
  Lm,
  Lo,  // letters
  Mn,
  Mc,
  Me,  // marks
  Nd,
  Nl,
  No,  // numbers
  Pc,
  Pd,
  Ps,
  Pe,
  Pi,
  Pf,
  Po,  // punctuation
  Sm,
  Sc,
  Sk,
  So,  // symbols
  Zs,
  Zl,
  Zp,  // separators
  Cc,
  Cf,
  Cs,
  Co,
  Cn,
};

/// Sets of characters as bits: every code point has exactly one of them, so that each class of a pattern is a union.
namespace char_class {
inline constexpr uint16_t upper = 1;         ///< Lu, Lt
inline constexpr uint16_t lower = 2;         ///< Ll
inline constexpr uint16_t other_letter = 4;  ///< Lm, Lo
inline constexpr uint16_t mark = 8;
inline constexpr uint16_t number = 16;
inline constexpr uint16_t slash = 32;  ///< U+002F
inline constexpr uint16_t other_punctuation = 64;
inline constexpr uint16_t symbol = 128;
inline constexpr uint16_t newline = 256;      ///< U+000A, U+000D
inline constexpr uint16_t other_space = 512;  ///< White_Space but those two
inline constexpr uint16_t rest = 1024;        ///< control, format, surrogate, private, unassigned

inline constexpr uint16_t letter = upper | lower | other_letter;    // \p{L}
inline constexpr uint16_t punctuation = slash | other_punctuation;  // \p{P}
inline constexpr uint16_t space = newline | other_space;            // \s
inline constexpr uint16_t any = letter | mark | number | punctuation | symbol | space | rest;
}  // namespace char_class

/// Both properties of all code points below U+110000, in pages of which equal ones are stored once.
class UnicodeTable {
 public:
  static const UnicodeTable& get();

  uint16_t char_class(char32_t c) const { return pages_[page_of_[c >> 8]].classes[c & 255]; }
  Category category(char32_t c) const { return pages_[page_of_[c >> 8]].categories[c & 255]; }

 private:
  UnicodeTable();

  struct Page {
    std::array<uint16_t, 256> classes;
    std::array<Category, 256> categories;
    bool operator==(const Page&) const = default;
  };
  std::array<uint16_t, 0x1100> page_of_{};
  std::vector<Page> pages_;
};

inline Category general_category(char32_t c) { return UnicodeTable::get().category(c); }
inline bool is_in_class(char32_t c, uint16_t classes) { return (UnicodeTable::get().char_class(c) & classes) != 0; }
inline bool is_mark(char32_t c) { return is_in_class(c, char_class::mark); }
inline bool is_number(char32_t c) { return is_in_class(c, char_class::number); }
inline bool is_punctuation(char32_t c) { return is_in_class(c, char_class::punctuation); }
inline bool is_symbol(char32_t c) { return is_in_class(c, char_class::symbol); }
inline bool is_space(char32_t c) { return is_in_class(c, char_class::space); }

}  // namespace llmtrain
