#pragma once
// GPT-2's printable form of bytes: 188 bytes stand for themselves, the others for U+0100..U+0143 in their order.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace llmtrain {

/// Code point that stands for a byte.
const std::array<char16_t, 256>& byte_level_characters();
/// The byte that a code point stands for, -1 when it stands for none.
int byte_of_character(char32_t c);
/// The 256 bytes in the order of their characters: the order of a trained alphabet.
const std::array<uint8_t, 256>& byte_level_order();
/// UTF-8 of the characters of `bytes`.
std::string to_byte_level(std::string_view bytes);
/// The bytes that `text` stands for; false when a character of it stands for none or it is not UTF-8.
bool from_byte_level(std::string_view text, std::string& bytes);

}  // namespace llmtrain
