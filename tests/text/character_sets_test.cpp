#include "text/unicode/character_sets.hpp"

#include <gtest/gtest.h>

namespace llmtrain {
namespace {

/// Returns the end of the first extended grapheme cluster, according to Unicode Standard Annex 29.
size_t first(std::string_view text) { return grapheme_end(text, 0); }

TEST(GraphemeEnd, FollowsTheRules) {
  EXPECT_EQ(first("a\xCC\x9A"
                  "b"),
            3u);  // GB9: a mark belongs to the letter
  EXPECT_EQ(first("\xD8\x80"
                  "a"),
            3u);                                                           // GB9b: U+0600, a prepended sign
  EXPECT_EQ(first("\r\n\xCC\x9A"), 2u);                                    // GB3, GB4
  EXPECT_EQ(first("\xE1\x84\x80\xE1\x85\xA1x"), 6u);                       // GB6: Hangul
  EXPECT_EQ(first("\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x9A\x80!"), 11u);  // GB11: joined pictures
}

TEST(GraphemeEnd, LineEndsAndControlsStandAlone) {
  EXPECT_EQ(first("\n\xCC\x9A"), 1u);  // GB4
  EXPECT_EQ(first("\r\xCC\x9A"), 1u);
  EXPECT_EQ(first("\x01\xCC\x9A"), 1u);
  EXPECT_EQ(first("a\n"), 1u);         // GB5
  EXPECT_EQ(first("\xD8\x80\n"), 2u);  // GB5 before GB9b
  EXPECT_EQ(first("\xD8\x80\r\n"), 2u);
}

}  // namespace
}  // namespace llmtrain
