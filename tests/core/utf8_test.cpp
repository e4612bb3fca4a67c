#include "core/utf8.hpp"

#include <gtest/gtest.h>

#include <string>

namespace llmtrain {
namespace {

constexpr size_t none = std::string_view::npos;

/// UTF-8 by the definition: the shortest form, no surrogates, up to U+10FFFF.
std::string encoded(uint32_t c) {
  const auto byte = [](uint32_t x) { return static_cast<char>(static_cast<uint8_t>(x)); };
  if (c < 0x80) return {byte(c)};
  if (c < 0x800) return {byte(0xC0 | c >> 6), byte(0x80 | (c & 63))};
  if (c < 0x10000) return {byte(0xE0 | c >> 12), byte(0x80 | (c >> 6 & 63)), byte(0x80 | (c & 63))};
  return {byte(0xF0 | c >> 18), byte(0x80 | (c >> 12 & 63)), byte(0x80 | (c >> 6 & 63)), byte(0x80 | (c & 63))};
}

TEST(Utf8, AcceptsExactlyTheCharacters) {
  for (uint32_t c = 0; c <= 0x10FFFF; ++c) {
    const bool surrogate = c >= 0xD800 && c < 0xE000;
    ASSERT_EQ(find_invalid_utf8(encoded(c)), surrogate ? 0 : none) << std::hex << c;
  }
  for (uint32_t c = 0x110000; c < 0x1FFFFF; c += 7) ASSERT_EQ(find_invalid_utf8(encoded(c)), 0u) << std::hex << c;
}

TEST(Utf8, AcceptsNoOtherTwoOrThreeBytes) {
  int accepted = 0;
  for (int a = 0x80; a < 0x100; ++a) {
    for (int b = 0; b < 0x100; ++b) {
      const std::string two = {static_cast<char>(a), static_cast<char>(b)};
      accepted += find_invalid_utf8(two) == none ? 1 : 0;
    }
  }
  EXPECT_EQ(accepted, 0x800 - 0x80);
  accepted = 0;
  for (int a = 0xE0; a < 0xF0; ++a) {
    for (int b = 0; b < 0x100; ++b) {
      for (int c = 0; c < 0x100; ++c) {
        const std::string three = {static_cast<char>(a), static_cast<char>(b), static_cast<char>(c)};
        accepted += find_invalid_utf8(three) == none ? 1 : 0;
      }
    }
  }
  EXPECT_EQ(accepted, 0x10000 - 0x800 - 0x800);
}

TEST(Utf8, NamesThePlace) {
  EXPECT_EQ(find_invalid_utf8(""), none);
  EXPECT_EQ(find_invalid_utf8("abc\xFF"), 3u);
  EXPECT_EQ(find_invalid_utf8("a\xC3\xA4\xC3"), 3u);  // truncated
  EXPECT_EQ(find_invalid_utf8("\xF0\x9F\x98"), 0u);
}

}  // namespace
}  // namespace llmtrain
