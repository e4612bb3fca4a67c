#include "text/tokenizer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace llmtrain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int32_t> encode(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids;
  tokenizer.encode(text, ids);
  return ids;
}

std::string refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_content);
    return error.what();
  }
  return "nothing was thrown";
}

TEST(ByteTokenizer, IdsAreTheBytes) {
  const auto tokenizer = make_byte_tokenizer();
  EXPECT_THAT(encode(*tokenizer, std::string_view("A\0\xC3\xA9", 4)), ElementsAre(65, 0, 0xC3, 0xA9));
  EXPECT_EQ(tokenizer->vocabulary_size(), 257);
  EXPECT_EQ(tokenizer->eos_id(), 256);
  EXPECT_EQ(tokenizer->bos_id(), -1);
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{65, 256, 0xC3, 0xA9}), "A\xC3\xA9");
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{-1, 257, 66, 1 << 30}), "B");  // without a token, no text
}

TEST(ByteTokenizer, BosComesAfterEos) {
  const auto tokenizer = make_byte_tokenizer(true);
  EXPECT_EQ(tokenizer->vocabulary_size(), 258);
  EXPECT_EQ(tokenizer->bos_id(), 257);
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{257, 66, 256}), "B");
  EXPECT_NE(tokenizer->serialized(), make_byte_tokenizer()->serialized());
}

TEST(CharTokenizer, IdsFollowCodePointOrder) {
  const auto tokenizer = make_char_tokenizer({U'\n', U'a', U'b', U'\u00e9', U'\U0001F600'});
  EXPECT_THAT(encode(*tokenizer, "b\u00e9\U0001F600\na"), ElementsAre(2, 3, 4, 0, 1));
  EXPECT_EQ(tokenizer->vocabulary_size(), 6);
  EXPECT_EQ(tokenizer->eos_id(), 5);
  EXPECT_EQ(tokenizer->bos_id(), -1);
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{2, 3, 4, 5, 0, 1}), "b\u00e9\U0001F600\na");
  EXPECT_EQ(make_char_tokenizer({U'x'}, true)->bos_id(), 2);
}

TEST(CharTokenizer, NamesTheByteItCannotEncode) {
  const auto tokenizer = make_char_tokenizer({U'a', U'\u00e9'});
  try {
    encode(*tokenizer, "a\u00e9z");
    FAIL() << "z is not in the vocabulary";
  } catch (const EncodeError& error) {
    EXPECT_EQ(error.byte(), 3U);
    EXPECT_THAT(error.what(), HasSubstr("U+007A"));
  }
  EXPECT_THAT(refusal([&] { encode(*tokenizer, "aa\xFF"); }), HasSubstr("byte 2"));
}

TEST(CharTokenizer, RefusesMoreCharactersThanIdsFit) {
  std::vector<char32_t> points;
  for (char32_t c = 0; c < 70000; ++c) {
    if (c < 0xD800 || c >= 0xE000) points.push_back(c);
  }
  EXPECT_THAT(refusal([&] { make_char_tokenizer(points); }), HasSubstr("use data.tokenizer = bytes"));
  points.resize(max_char_vocabulary);
  EXPECT_EQ(make_char_tokenizer(points, true)->vocabulary_size(), 65536);
  EXPECT_THROW(make_char_tokenizer({U'b', U'a'}), Error);
}

TEST(TokenizerSerialization, ComesBackTheSame) {
  std::vector<char32_t> many;
  for (char32_t c = 1; c < 50000; c += 3) many.push_back(c >= 0xD800 ? c + 0x2000 : c);
  std::vector<std::unique_ptr<Tokenizer>> all;
  all.push_back(make_byte_tokenizer());
  all.push_back(make_byte_tokenizer(true));
  all.push_back(make_char_tokenizer({U'a', U'\U0010FFFF'}));
  all.push_back(make_char_tokenizer(many, true));
  for (const auto& tokenizer : all) {
    const auto copy = make_tokenizer_from(tokenizer->serialized());
    EXPECT_EQ(copy->serialized(), tokenizer->serialized());
    EXPECT_EQ(copy->kind(), tokenizer->kind());
    EXPECT_EQ(copy->vocabulary_size(), tokenizer->vocabulary_size());
    EXPECT_EQ(copy->bos_id(), tokenizer->bos_id());
  }
  EXPECT_EQ(encode(*make_tokenizer_from(all[2]->serialized()), "a").front(), 0);
}

TEST(TokenizerSerialization, HostileTextIsRefused) {
  const std::vector<std::string> hostile = {
      "",
      "nonsense",
      "[]",
      "{}",
      R"({"type":"char","bos":false})",
      R"({"type":"char","bos":false,"code_points":[]})",
      R"({"type":"char","bos":false,"code_points":[2,1]})",
      R"({"type":"char","bos":false,"code_points":[1,1]})",
      R"({"type":"char","bos":false,"code_points":[-1]})",
      R"({"type":"char","bos":false,"code_points":[1.5]})",
      R"({"type":"char","bos":false,"code_points":[1114112]})",
      R"({"type":"char","bos":false,"code_points":[55296]})",
      R"({"type":"char","bos":0,"code_points":[1]})",
      R"({"type":"bpe","bos":false})",
      R"({"type":["bytes"],"bos":false})",
      std::string(100000, '['),
      R"({"type":"char","bos":false,"code_points":[)" + std::string(2 << 20, '1') + "]}",
  };
  for (const std::string& text : hostile) {
    EXPECT_THAT(refusal([&] { make_tokenizer_from(text); }), HasSubstr("stored tokenizer")) << text.substr(0, 60);
  }
  EXPECT_NO_THROW(make_tokenizer_from(R"({"type":"char","bos":false,"code_points":[1,2]})"));
}

}  // namespace
}  // namespace llmtrain
