#include "text/hf_folder/json_out.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace llmtrain {
namespace {

using testing::HasSubstr;

BpeVocabulary small(const std::vector<std::string>& special) {
  WordCounts counts;
  counts.add("a\"\\\n", 3);
  return train_bpe(counts, {.vocabulary_size = 400, .special_tokens = special});
}

TEST(BpeFiles, TokenizerJsonHasWhatItShould) {
  const std::string text = bpe_tokenizer_json(small({"<a \"q\">", "\u00E9\n"}), *SplitPattern::find_name("llama3"));
  const nlohmann::json json = nlohmann::json::parse(text);
  EXPECT_EQ(json.at("added_tokens").at(0).at("content"), "<a \"q\">");
  EXPECT_EQ(json.at("added_tokens").at(1).at("content"), "\u00E9\n");
  EXPECT_EQ(json.at("added_tokens").at(1).at("id"), 1);
  const nlohmann::json& model = json.at("model");
  EXPECT_EQ(model.at("vocab").size(), 261u);
  EXPECT_EQ(model.at("vocab").at("\""), 3);
  EXPECT_EQ(model.at("merges").size(), 3u);
  const std::string regex = json.at("pre_tokenizer").at("pretokenizers").at(0).at("pattern").at("Regex");
  EXPECT_EQ(SplitPattern::find(regex), SplitPattern::find_name("llama3"));
}

TEST(BpeFiles, WithoutSpecialTokensAndMerges) {
  WordCounts none;
  const BpeVocabulary vocabulary = train_bpe(none, {.vocabulary_size = 256});
  const nlohmann::json json = nlohmann::json::parse(bpe_tokenizer_json(vocabulary, *SplitPattern::find_name("gpt2")));
  EXPECT_TRUE(json.at("added_tokens").empty() && json.at("added_tokens").is_array());
  EXPECT_TRUE(json.at("model").at("merges").empty());
  EXPECT_EQ(json.at("pre_tokenizer").at("type"), "ByteLevel");
}

TEST(BpeFiles, ConfigNamesTheSpecialTokens) {
  EXPECT_THAT(bpe_tokenizer_config({"<e>", "<b>"}), HasSubstr("\"eos_token\": \"<e>\""));
  EXPECT_THAT(bpe_tokenizer_config({"<e>", "<b>"}), HasSubstr("\"bos_token\": \"<b>\""));
  EXPECT_THAT(bpe_tokenizer_config({}), testing::Not(HasSubstr("os_token")));
}

}  // namespace
}  // namespace llmtrain
