#pragma once
// GPT-2's printable form of bytes: 188 bytes represent themselves, the others become U+0100..U+0143 in order.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace llmtrain {

/// Returns the code point that represents a byte.
const std::array<char16_t, 256>& byte_level_characters();
/// Returns the byte that a code point represents, -1 if there is none.
int byte_of_character(char32_t c);
/// Returns the 256 bytes in the order of their characters: the order of a trained alphabet.
const std::array<uint8_t, 256>& byte_level_order();
/// Returns the characters of `bytes` in UTF-8.
std::string to_byte_level(std::string_view bytes);
/// Decodes the bytes of `text`; returns false if a character represents no byte or the text is not UTF-8.
bool from_byte_level(std::string_view text, std::string& bytes);

}  // namespace llmtrain
