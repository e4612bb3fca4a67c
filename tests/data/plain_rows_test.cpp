// Rows of texts that people formatted themselves, as TRL encodes them (tests/reference/sft/make_plain_text_goldens.py).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "data/formats/encode_documents.hpp"
#include "data/tokenize/open_tokenizer.hpp"
#include "data_files.hpp"

namespace llmtrain {
namespace {

using Json = nlohmann::ordered_json;
using test::content_of;

const std::string folder = "tests/reference/sft/";

/// The tokenizer of the goldens, which puts BOS before a text if asked to.
std::unique_ptr<Tokenizer> tokenizer_of(const test::Folder& files, bool bos) {
  if (!bos) return open_tokenizer(folder + "model");
  Json tokenizer = Json::parse(content_of(folder + "model/tokenizer.json"));
  const Json token = {{"id", "<|pad|>"}, {"type_id", 0}};
  Json& single = tokenizer["post_processor"]["single"];
  single.insert(single.begin(), Json{{"SpecialToken", token}});
  tokenizer["post_processor"]["special_tokens"]["<|pad|>"] = {
      {"id", "<|pad|>"}, {"ids", {318}}, {"tokens", {"<|pad|>"}}};
  Json config = Json::parse(content_of(folder + "model/tokenizer_config.json"));
  config["bos_token"] = "<|pad|>";
  files.file("tokenizer.json", tokenizer.dump());
  files.file("tokenizer_config.json", config.dump());
  return open_tokenizer(files.path());
}

/// The first token is not a target, so that its mask does not count.
std::vector<int> mask_of_targets(std::vector<int> mask) {
  if (!mask.empty()) mask.front() = 0;
  return mask;
}

TEST(PlainRows, AreEncodedAsTrlDoes) {
  const test::Folder files;
  size_t documents = 0, special = 0;
  const Json goldens = Json::parse(content_of(folder + "plain_texts.json"));
  for (const Json& entry : goldens["cases"]) {
    const auto tokenizer = tokenizer_of(files, entry["bos"]);
    ChatConfig config;
    config.template_name = "chatml";  // which does not touch them
    const ChatEncoder encoder(*tokenizer, config, "", training_time);
    const RowReader reader(entry["format"].get<std::string>(), {}, true);
    for (size_t r = 0; r < entry["rows"].size(); ++r) {
      SCOPED_TRACE(entry["format"].dump() + entry["bos"].dump() + entry["rows"][r].dump());
      std::vector<EncodedRow> encoded;
      encode_documents(encoder, reader.read_documents(entry["rows"][r].dump()), encoded);
      const Json& expected = entry["documents"][r];
      ASSERT_EQ(encoded.size(), expected.size());
      for (size_t d = 0; d < encoded.size(); ++d, ++documents) {
        EXPECT_EQ(encoded[d].ids, expected[d]["ids"].get<std::vector<int32_t>>());
        const std::vector<int> mask(encoded[d].mask.begin(), encoded[d].mask.end());
        EXPECT_EQ(mask_of_targets(mask), mask_of_targets(expected[d]["mask"]));
        special += static_cast<size_t>(std::ranges::count(encoded[d].ids, 319));
        if (entry["format"] == "prompt") continue;
        EXPECT_EQ(encoded[d].stop, tokenizer->eos_id());
        EXPECT_EQ(encoded[d].ids.size(), encoded[d].ranges.size());
      }
    }
  }
  EXPECT_GT(documents, 60U);
  EXPECT_GT(special, 60U) << "markup is read as tokens";
}

/// Contents that a template renders stay text: the control of the test above.
TEST(PlainRows, ContentOfATemplateStaysText) {
  const auto tokenizer = open_tokenizer(folder + "model");
  const auto count = [&](bool parse_special) {
    ChatConfig config;
    config.template_name = "chatml";
    config.parse_special = parse_special;
    std::vector<EncodedRow> encoded;
    encode_documents(
        ChatEncoder(*tokenizer, config, "", training_time),
        RowReader("alpaca", {}, true).read_documents(R"({"instruction": "x<|im_end|>", "output": "<|im_end|>"})"),
        encoded);
    return std::ranges::count(encoded.front().ids, 320);
  };
  EXPECT_EQ(count(false), 2);
  EXPECT_EQ(count(true), 4);
}

}  // namespace
}  // namespace llmtrain
