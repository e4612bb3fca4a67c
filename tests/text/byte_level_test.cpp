#include "text/pipeline/byte_level.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace llmtrain {
namespace {

TEST(ByteLevel, KnownCharacters) {  // of GPT-2's vocabulary
  EXPECT_EQ(to_byte_level(" a\n"),
            "\xC4\xA0"
            "a\xC4\x8A");
  EXPECT_EQ(byte_level_characters()[0], 0x100);
  EXPECT_EQ(byte_level_characters()[' '], 0x120);
  EXPECT_EQ(byte_level_characters()[0x7F], 0x121);
  EXPECT_EQ(byte_level_characters()[0xAD], 0x143);
  EXPECT_EQ(byte_level_characters()[0xFF], 0xFF);
}

TEST(ByteLevel, EveryByteComesBack) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  std::string back;
  ASSERT_TRUE(from_byte_level(to_byte_level(all), back));
  EXPECT_EQ(back, all);
  std::set<char16_t> distinct(byte_level_characters().begin(), byte_level_characters().end());
  EXPECT_EQ(distinct.size(), 256u);
}

TEST(ByteLevel, OrderIsThatOfTheCharacters) {
  const auto& order = byte_level_order();
  EXPECT_EQ(order[0], '!');  // id 0 of GPT-2
  EXPECT_EQ(order[188], 0);
  EXPECT_EQ(order[220], ' ');
  EXPECT_EQ(order[255], 0xAD);
}

TEST(ByteLevel, OtherCharactersStandForNothing) {
  std::string bytes;
  EXPECT_FALSE(from_byte_level(" ", bytes));
  EXPECT_FALSE(from_byte_level("\xC5\x84", bytes));  // U+0144
  EXPECT_FALSE(from_byte_level("a\xC4", bytes));     // ends early
  EXPECT_EQ(byte_of_character(0x10FFFF), -1);
}

}  // namespace
}  // namespace llmtrain
