#pragma once
// Well-formed UTF-8 as a sequence of code points. Validate with find_invalid_utf8 (core/utf8.hpp) first.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace llmtrain {

inline constexpr char32_t code_point_limit = 0x110000;

inline bool is_utf8_continuation(char byte) { return (static_cast<uint8_t>(byte) & 0xC0u) == 0x80u; }

/// Returns the code point that starts at text[i] and moves i past it. `text` is well-formed UTF-8 and i <
/// text.size().
inline char32_t next_code_point(std::string_view text, size_t& i) {
  const auto byte = [&](size_t k) { return static_cast<uint32_t>(static_cast<uint8_t>(text[k])); };
  const uint32_t lead = byte(i);
  if (lead < 0x80) {
    ++i;
    return lead;
  }
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  uint32_t value = lead & (0x7Fu >> length);
  for (size_t k = 1; k < length; ++k) value = value << 6 | (byte(i + k) & 0x3Fu);
  i += length;
  return value;
}

inline void append_code_point(std::string& text, char32_t c) {
  const auto tail = [&](int shift) {
    text += static_cast<char>(0x80u | ((static_cast<uint32_t>(c) >> shift) & 0x3Fu));
  };
  if (c < 0x80) {
    text += static_cast<char>(c);
  } else if (c < 0x800) {
    text += static_cast<char>(0xC0u | (c >> 6));
    tail(0);
  } else if (c < 0x10000) {
    text += static_cast<char>(0xE0u | (c >> 12));
    tail(6);
    tail(0);
  } else {
    text += static_cast<char>(0xF0u | (c >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

/// Returns the number of code points of well-formed UTF-8.
inline int64_t count_code_points(std::string_view text) {
  int64_t count = 0;
  for (const char byte : text) count += is_utf8_continuation(byte) ? 0 : 1;
  return count;
}

}  // namespace llmtrain
