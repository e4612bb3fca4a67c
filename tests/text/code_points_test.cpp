#include "text/unicode/code_points.hpp"

#include <gtest/gtest.h>

#include "core/utf8.hpp"

namespace llmtrain {
namespace {

// The compiler encodes both literals: an independent encoder.
constexpr char32_t points[] = U"a\u007f\u0080\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0001F600\U0010FFFF";
const std::string text = "a\u007f\u0080\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0001F600\U0010FFFF";

TEST(CodePoints, DecodesWhatTheCompilerEncoded) {
  size_t i = 0;
  for (size_t k = 0; points[k] != 0; ++k) EXPECT_EQ(next_code_point(text, i), points[k]) << k;
  EXPECT_EQ(i, text.size());
  EXPECT_EQ(count_code_points(text), 11);
}

TEST(CodePoints, EncodesAsTheCompilerDoes) {
  std::string written;
  for (size_t k = 0; points[k] != 0; ++k) append_code_point(written, points[k]);
  EXPECT_EQ(written, text);
}

TEST(CodePoints, EveryCodePointComesBack) {
  for (char32_t c = 0; c < code_point_limit; ++c) {
    if (c == 0xD800) c = 0xE000;  // surrogates are not characters
    std::string bytes;
    append_code_point(bytes, c);
    ASSERT_EQ(find_invalid_utf8(bytes), std::string_view::npos) << std::hex << static_cast<uint32_t>(c);
    size_t i = 0;
    ASSERT_EQ(next_code_point(bytes, i), c);
    ASSERT_EQ(i, bytes.size());
  }
}

}  // namespace
}  // namespace llmtrain
