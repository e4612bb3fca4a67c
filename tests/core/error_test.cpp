#include "core/error.hpp"

#include <gtest/gtest.h>

#include <string>

namespace llmtrain {
namespace {

TEST(Messages, HoldNoControlCharacters) {
  EXPECT_EQ(without_controls("a\nb\tc"), "a\nb\tc");
  EXPECT_EQ(without_controls("\x1B[31mred\r\x7F" + std::string(1, '\0')), "\\x1b[31mred\\x0d\\x7f\\x00");
  EXPECT_EQ(without_controls("\xC2\x9B"
                             "2J"),
            "\\xc2\\x9b2J")
      << "U+009B begins a sequence as ESC [ does";
  EXPECT_EQ(without_controls("\x9B\xFF\xE2\x82"), "\\x9b\\xff\\xe2\\x82") << "no UTF-8, cut off at the end";
  const std::string letters = "\xC2\xA0\xC3\xA4 \xE6\x97\xA5 \xF0\x9F\x98\x80 \\x1b";
  EXPECT_EQ(without_controls(letters), letters);
}

TEST(Messages, OfErrorsHoldNone) {
  EXPECT_STREQ(UserError(ExitCode::bad_content, "\x1B]0;x\x07.txt: no").what(), "\\x1b]0;x\\x07.txt: no");
  EXPECT_STREQ(Error("\x1B").what(), "\\x1b");
}

}  // namespace
}  // namespace llmtrain
