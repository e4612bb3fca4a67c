#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace llmtrain {

/// Offset of the first byte that is not part of well-formed UTF-8 (Unicode table 3-7: no overlong forms, no
/// surrogates, nothing above U+10FFFF), or npos.
inline size_t find_invalid_utf8(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0}; };
  for (size_t i = 0; i < text.size();) {
    const uint8_t lead = byte(i);
    size_t length = 1;
    uint8_t low = 0x80, high = 0xBF;  // bounds of the second byte
    if (lead >= 0x80) {
      if (lead < 0xC2 || lead > 0xF4) return i;
      length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
      if (lead == 0xE0) low = 0xA0;
      if (lead == 0xED) high = 0x9F;
      if (lead == 0xF0) low = 0x90;
      if (lead == 0xF4) high = 0x8F;
      if (byte(i + 1) < low || byte(i + 1) > high) return i;
      for (size_t k = 2; k < length; ++k) {
        if (byte(i + k) < 0x80 || byte(i + k) > 0xBF) return i;
      }
    }
    i += length;
  }
  return std::string_view::npos;
}

}  // namespace llmtrain
