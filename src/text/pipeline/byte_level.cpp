#include "text/pipeline/byte_level.hpp"

#include <algorithm>
#include <numeric>

#include "core/utf8.hpp"
#include "text/unicode/code_points.hpp"

namespace llmtrain {
namespace {

constexpr bool is_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<char16_t, 256> make_characters() {
  std::array<char16_t, 256> characters{};
  char16_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    characters[static_cast<size_t>(byte)] = is_itself(byte) ? static_cast<char16_t>(byte) : next++;
  }
  return characters;
}

constexpr std::array<char16_t, 256> characters = make_characters();

constexpr std::array<int16_t, 0x144> make_bytes() {
  std::array<int16_t, 0x144> bytes{};
  bytes.fill(-1);
  for (size_t byte = 0; byte < 256; ++byte) bytes[characters[byte]] = static_cast<int16_t>(byte);
  return bytes;
}

constexpr std::array<int16_t, 0x144> bytes_of = make_bytes();

}  // namespace

const std::array<char16_t, 256>& byte_level_characters() { return characters; }

int byte_of_character(char32_t c) { return c < bytes_of.size() ? bytes_of[c] : -1; }

const std::array<uint8_t, 256>& byte_level_order() {
  static const std::array<uint8_t, 256> order = [] {
    std::array<uint8_t, 256> bytes{};
    std::iota(bytes.begin(), bytes.end(), uint8_t{0});
    std::ranges::sort(bytes, [](uint8_t a, uint8_t b) { return characters[a] < characters[b]; });
    return bytes;
  }();
  return order;
}

std::string to_byte_level(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const char byte : bytes) append_code_point(text, characters[static_cast<uint8_t>(byte)]);
  return text;
}

bool from_byte_level(std::string_view text, std::string& bytes) {
  bytes.clear();
  if (find_invalid_utf8(text) != std::string_view::npos) return false;
  for (size_t i = 0; i < text.size();) {
    const int byte = byte_of_character(next_code_point(text, i));
    if (byte < 0) return false;
    bytes += static_cast<char>(byte);
  }
  return true;
}

}  // namespace llmtrain
