#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "harness/temporary_folder.hpp"
#include "text/hf_folder/json_out.hpp"
#include "text/load_tokenizer.hpp"

namespace llmtrain {
namespace {

/// Returns the tokenizer after it was saved and loaded like other programs do.
std::unique_ptr<Tokenizer> saved_and_loaded(const Tokenizer& tokenizer) {
  const test::TemporaryFolder folder;
  save_tokenizer(tokenizer, folder.text());
  return load_tokenizer(folder.text());
}

std::vector<int32_t> encoded(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids;
  tokenizer.encode(text, ids);
  return ids;
}

void expect_the_same(const Tokenizer& tokenizer, const std::string& text) {
  const auto loaded = saved_and_loaded(tokenizer);
  EXPECT_EQ(loaded->kind(), "bpe");
  EXPECT_EQ(loaded->vocabulary_size(), tokenizer.vocabulary_size());
  EXPECT_EQ(loaded->eos_id(), tokenizer.eos_id());
  EXPECT_EQ(loaded->bos_id(), tokenizer.bos_id());
  const std::vector<int32_t> ids = encoded(tokenizer, text);
  EXPECT_EQ(encoded(*loaded, text), ids);
  EXPECT_EQ(loaded->decode(ids), text);
  EXPECT_NE(encoded(*loaded, text + "a"), ids) << "control";
  // A prompt begins like the training documents.
  std::vector<int32_t> prompt = ids, of_loaded = ids;
  tokenizer.add_special_tokens(prompt, nullptr);
  loaded->add_special_tokens(of_loaded, nullptr);
  EXPECT_EQ(of_loaded, prompt);
  EXPECT_EQ(prompt.size() > ids.size(), tokenizer.bos_id() >= 0);
}

TEST(PlainFiles, OfCharactersGiveTheSameTokens) {
  const std::vector<char32_t> characters = {U'\n', U' ', U'"', U'\\', U'a', U'b', U'\u00e9', U'\u4e2d', U'\U0001f600'};
  for (const bool bos : {false, true}) {
    expect_the_same(*make_char_tokenizer(characters, bos), "ab \"a\"\\\n\u00e9\u4e2d\U0001f600  b");
  }
}

TEST(PlainFiles, OfBytesGiveTheSameTokens) {
  std::string text;
  for (int byte = 1; byte < 128; ++byte) text += static_cast<char>(byte);
  for (const bool bos : {false, true}) expect_the_same(*make_byte_tokenizer(bos), text + "\u00e9\u4e2d\U0001f600");
}

TEST(PlainFiles, SpecialTokensAreNamed) {
  const auto loaded = saved_and_loaded(*make_byte_tokenizer(true));
  EXPECT_EQ(encoded(*loaded, "<|endoftext|>"), std::vector<int32_t>{256});
  EXPECT_EQ(loaded->decode(std::vector<int32_t>{'a', 256, 257, 'b'}), "ab");
  const auto files = plain_tokenizer_files(*make_byte_tokenizer());
  ASSERT_EQ(files.size(), 2U);
  const auto config = nlohmann::json::parse(files[1].bytes);
  EXPECT_EQ(config["eos_token"], "<|endoftext|>");
  EXPECT_FALSE(config.contains("bos_token"));
}

}  // namespace
}  // namespace llmtrain
