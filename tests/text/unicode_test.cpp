#include "text/unicode/unicode.hpp"

#include <gtest/gtest.h>

#include <map>

#include "text/unicode/code_points.hpp"

namespace llmtrain {
namespace {

/// Numbers of code points by category in Unicode 16.0 (extracted/DerivedGeneralCategory.txt, lines "Total code
/// points").
TEST(Unicode, CountsOfCategories) {
  std::map<Category, int> counts;
  for (char32_t c = 0; c < code_point_limit; ++c) ++counts[general_category(c)];
  EXPECT_EQ(counts[Category::Lu], 1858);
  EXPECT_EQ(counts[Category::Ll], 2258);
  EXPECT_EQ(counts[Category::Lt], 31);
  EXPECT_EQ(counts[Category::Lm], 404);
  EXPECT_EQ(counts[Category::Lo], 136477);
  EXPECT_EQ(counts[Category::Nd], 760);
  EXPECT_EQ(counts[Category::Zs], 17);
  EXPECT_EQ(counts[Category::Cc], 65);
  EXPECT_EQ(counts[Category::Cs], 2048);
  EXPECT_EQ(counts[Category::Co], 137468);
  EXPECT_EQ(counts[Category::Cn], 819533);
}

TEST(Unicode, ClassesPartitionAllCodePoints) {
  int spaces = 0;
  for (char32_t c = 0; c < code_point_limit; ++c) {
    const uint16_t classes = UnicodeTable::get().char_class(c);
    ASSERT_TRUE(classes != 0 && (classes & (classes - 1)) == 0) << static_cast<uint32_t>(c);
    spaces += is_space(c) ? 1 : 0;
  }
  EXPECT_EQ(spaces, 25);  // White_Space of PropList.txt
}

TEST(Unicode, SomeCharacters) {
  for (const char32_t c : {U'a', U'\u4E2D', U'\u02B0'}) EXPECT_TRUE(is_in_class(c, char_class::letter));
  for (const char32_t c : {U'1', U'\u0301'}) EXPECT_FALSE(is_in_class(c, char_class::letter));
  EXPECT_TRUE(is_number(U'1') && is_number(0xBD) && is_number(0x2167) && is_number(0x663));
  EXPECT_TRUE(is_space(U' ') && is_space(0x85) && is_space(0x3000) && is_space(U'\r') && !is_space(0x200B));
  EXPECT_TRUE(is_mark(0x301) && is_mark(0x20DD) && is_punctuation(U'/') && is_punctuation(0x3001) && is_symbol(U'+'));
  EXPECT_FALSE(is_punctuation(U'+') || is_symbol(U'!') || is_mark(U'a'));
}

}  // namespace
}  // namespace llmtrain
