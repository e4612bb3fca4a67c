#pragma once
// Sets of characters as in the tokenizers library: its components follow different versions of Unicode, so these are
// not the categories of unicode.hpp. A stray byte is in none of them.

#include <cstdint>
#include <string_view>

namespace llmtrain {

namespace character_set {
inline constexpr uint16_t white_space = 1;       ///< Unicode's White_Space
inline constexpr uint16_t word = 2;              ///< \w
inline constexpr uint16_t numeric = 4;           ///< Nd, Nl, No
inline constexpr uint16_t punctuation = 8;       ///< ASCII's and Unicode's
inline constexpr uint16_t bert_control = 16;     ///< Cc, Cf, Cn, Co without tab and line ends
inline constexpr uint16_t nonspacing_mark = 32;  ///< Mn
inline constexpr uint16_t combining_mark = 64;   ///< Mn, Mc, Me
inline constexpr uint16_t grapheme_control = 128;
inline constexpr uint16_t grapheme_extend = 256;
inline constexpr uint16_t grapheme_spacing_mark = 512;
inline constexpr uint16_t grapheme_prepend = 1024;
inline constexpr uint16_t pictographic = 2048;
}  // namespace character_set

/// Returns all sets of a code point.
uint16_t character_sets_of(char32_t c);

inline bool is_in_set(char32_t c, uint16_t set) { return (character_sets_of(c) & set) != 0; }
inline bool is_white_space(char32_t c) {
  return c < 0x80 ? c == ' ' || (c >= '\t' && c <= '\r') : is_in_set(c, character_set::white_space);
}
inline bool is_word_character(char32_t c) { return is_in_set(c, character_set::word); }
inline bool is_numeric(char32_t c) { return is_in_set(c, character_set::numeric); }
inline bool is_bert_punctuation(char32_t c) { return is_in_set(c, character_set::punctuation); }
inline bool is_bert_control(char32_t c) { return is_in_set(c, character_set::bert_control); }
inline bool is_nonspacing_mark(char32_t c) { return is_in_set(c, character_set::nonspacing_mark); }
inline bool is_combining_mark(char32_t c) { return is_in_set(c, character_set::combining_mark); }

/// Returns the lower case of one character without its context; for U+0130 the first of two characters.
char32_t lowercase(char32_t c);

/// Returns the end of the extended grapheme cluster that begins at text[i], i < text.size().
size_t grapheme_end(std::string_view text, size_t i);

}  // namespace llmtrain
