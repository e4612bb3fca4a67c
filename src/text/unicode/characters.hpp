#pragma once
// Lossless view of any bytes as a sequence of characters: a byte that is not part of well-formed UTF-8 is a character
// by itself, represented by a surrogate (which is not a Unicode character).

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "text/unicode/code_points.hpp"

namespace llmtrain {

/// U+2581, SentencePiece's replacement of a space.
inline constexpr std::string_view space_symbol = "\xE2\x96\x81";

struct Character {
  char32_t code;
  size_t length;  ///< bytes
};

inline constexpr char32_t stray_byte = 0xDC00;  ///< + the byte
inline bool is_stray_byte(char32_t code) { return code >= stray_byte + 0x80 && code <= stray_byte + 0xFF; }

/// Returns the character at text[i], i < text.size().
inline Character character_at(std::string_view text, size_t i) {
  const auto byte = [&](size_t k) { return k < text.size() ? static_cast<uint8_t>(text[k]) : uint8_t{0}; };
  const uint8_t lead = byte(i);
  if (lead < 0x80) return {lead, 1};
  const Character stray{stray_byte + lead, 1};
  if (lead < 0xC2 || lead > 0xF4) return stray;
  const uint8_t second = byte(i + 1);
  const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (second < low || second > high) return stray;
  if (lead < 0xE0) return {char32_t{lead & 0x1Fu} << 6 | (second & 0x3Fu), 2};
  const uint8_t third = byte(i + 2);
  if ((third & 0xC0) != 0x80) return stray;
  if (lead < 0xF0) return {char32_t{lead & 0x0Fu} << 12 | (second & 0x3Fu) << 6 | (third & 0x3Fu), 3};
  const uint8_t fourth = byte(i + 3);
  if ((fourth & 0xC0) != 0x80) return stray;
  return {char32_t{lead & 0x07u} << 18 | (second & 0x3Fu) << 12 | (third & 0x3Fu) << 6 | (fourth & 0x3Fu), 4};
}

/// Returns the character that ends before text[end], end > 0.
inline Character character_before(std::string_view text, size_t end) {
  for (size_t length = 2; length <= 4 && length <= end; ++length) {
    const Character c = character_at(text.substr(0, end), end - length);
    if (c.length == length) return c;
  }
  return character_at(text.substr(0, end), end - 1);
}

inline void append_character(std::string& text, char32_t code) {
  if (is_stray_byte(code)) {
    text += static_cast<char>(code - stray_byte);
  } else {
    append_code_point(text, code);
  }
}

/// Returns all characters of a short text.
inline std::u32string to_characters(std::string_view text) {
  std::u32string characters;
  for (size_t i = 0; i < text.size();) {
    const Character c = character_at(text, i);
    characters += c.code;
    i += c.length;
  }
  return characters;
}

}  // namespace llmtrain
