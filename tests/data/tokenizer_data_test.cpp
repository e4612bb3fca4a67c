// Text tokenized by tokenizers from files: segments of long documents, stored data, refused files.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "corpus/stories.hpp"
#include "dataset_fixture.hpp"
#include "text/load_tokenizer.hpp"

namespace llmtrain {
namespace {

using test::all_tokens;
using test::offsets_of;
using test::refusal;
using testing::AllOf;
using testing::HasSubstr;

const std::string tokenizers = "tests/reference/tokenizers/synthetic/";

class TokenizerDataTest : public test::DatasetTest {
 protected:
  std::vector<std::pair<std::string, std::string>> check() const {
    std::vector<std::pair<std::string, std::string>> errors;
    check_data_files(config_, [&](const char* key, const UserError& error) {
      errors.emplace_back(key, std::to_string(static_cast<int>(error.code())) + " " + error.what());
    });
    return errors;
  }
};

TEST_F(TokenizerDataTest, ATokenFileNamesTheTokenizerThatItWasMadeWith) {
  config_.train = {folder_.file("a.txt", "abcabd")};
  config_.tokenizer = "char";
  const Dataset made = open();
  config_.train = {folder_.file("b.txt", "dcba")};
  config_.tokenizer = made.train->info().path;
  EXPECT_TRUE(check().empty());
  EXPECT_THAT(all_tokens(*open().train), testing::ElementsAre(3, 2, 1, 0, 4));
  config_.eos_token = "d";
  EXPECT_THAT(refusal([&] { open(); }), HasSubstr("its texts do not end with \"d\""));
}

/// Three documents, one of them far longer than a segment, with stretches that cannot be cut.
std::string long_text() {
  std::string text =
      "a short one\x01" + stories_text(7, 1'500'000) + std::string(1'200'000, 'x') + stories_text(8, 800'000);
  for (size_t i = 1'000; i < text.size(); i += 4'001) text[i] = '.';
  return text + "\x01the last";
}

TEST_F(TokenizerDataTest, LongDocumentsAreTokenizedAsWholes) {
  const std::string text = long_text();
  config_.train = {folder_.file("text.txt", text)};
  config_.document_separator = "\x01";
  for (const std::string name : {"gpt2.json", "llama2.json", "qwen2_nfc.json", "bpe_bytes.model", "unigram.json"}) {
    SCOPED_TRACE(name);
    config_.tokenizer = tokenizers + name;
    const auto tokenizer = load_tokenizer(config_.tokenizer, name == "llama2.json" ? "</s>" : "");
    config_.eos_token = tokenizer->eos_id() < 0 ? "the" : "";
    if (name == "gpt2.json" || name == "qwen2_nfc.json") config_.eos_token = "</s>";
    if (name == "unigram.json") config_.eos_token = "<s>";
    const Dataset data = open();
    std::vector<int32_t> ids;
    std::vector<uint64_t> offsets = {0};
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find('\x01', begin), text.size());
      data.tokenizer->encode(text.substr(begin, end - begin), ids);
      ids.push_back(data.tokenizer->eos_id());
      offsets.push_back(ids.size());
      begin = end + 1;
    }
    EXPECT_TRUE(all_tokens(*data.train) == ids);
    EXPECT_EQ(offsets_of(*data.train), offsets);
    EXPECT_EQ(data.vocabulary_size, tokenizer->vocabulary_size());
  }
}

TEST_F(TokenizerDataTest, TheFileHoldsTheTokenizer) {
  config_.train = {folder_.file("text.txt", "the cat sat on a mat")};
  config_.tokenizer = tokenizers + "llama2.json";
  config_.add_bos = true;
  const Dataset data = open();
  EXPECT_EQ(all_tokens(*data.train).front(), data.tokenizer->bos_id());
  EXPECT_EQ(data.tokenizer->decode(all_tokens(*data.train)), "the cat sat on a mat");
  config_.train = {data.train->info().path};
  config_.tokenizer = "char";
  const Dataset again = open();
  EXPECT_EQ(again.tokenizer->serialized(), data.tokenizer->serialized());
}

TEST_F(TokenizerDataTest, CheckNamesTheKeyAndTheFile) {
  config_.train = {folder_.file("text.txt", "text")};
  config_.tokenizer = tokenizers + "gpt2.json";
  EXPECT_TRUE(check().empty());
  config_.tokenizer = folder_ / "nowhere.json";
  ASSERT_EQ(check().size(), 1u);
  EXPECT_EQ(check()[0].first, "data.tokenizer");
  EXPECT_THAT(check()[0].second, AllOf(HasSubstr("66 "), HasSubstr("nowhere.json")));
  config_.tokenizer = folder_.file("bad.json", "{\"model\":{}}");
  ASSERT_EQ(check().size(), 1u);
  EXPECT_THAT(check()[0].second, AllOf(HasSubstr("65 "), HasSubstr("bad.json.model: the model (none)")));
  config_.tokenizer = tokenizers + "no_decoder.json";
  EXPECT_THAT(check()[0].second, AllOf(HasSubstr("65 "), HasSubstr("data.eos_token")));
  config_.eos_token = "the";
  EXPECT_TRUE(check().empty());
  config_.add_bos = true;
  EXPECT_THAT(check()[0].second, HasSubstr("data.add_bos = false"));
}

}  // namespace
}  // namespace llmtrain
