// Fill-in-the-middle: the ids of an independent script (tests/reference/infilling/make_infilling_goldens.py), from rows
// and from texts; and the sentinels of known tokenizers.

#include "data/tokenize/infilling.hpp"

#include <nlohmann/json.hpp>

#include "dataset_fixture.hpp"

namespace llmtrain {
namespace {

using Documents = std::vector<std::vector<int32_t>>;
using test::all_tokens;
using test::content_of;
using test::offsets_of;
using testing::AllOf;
using testing::HasSubstr;

class InfillingTest : public test::DatasetTest {
 protected:
  InfillingTest() { config_.eos_token = goldens_["eos"].get<std::string>(); }

  Documents documents() {
    const Dataset data = open();
    const std::vector<int32_t> ids = all_tokens(*data.train);
    const std::vector<uint64_t> offsets = offsets_of(*data.train);
    Documents all;
    for (size_t d = 0; d + 1 < offsets.size(); ++d)
      all.emplace_back(ids.data() + offsets[d], ids.data() + offsets[d + 1]);
    return all;
  }
  void take(const nlohmann::json& golden) {
    config_.tokenizer = "tests/reference/tokenizers/synthetic/" + golden["tokenizer"].get<std::string>();
    config_.add_tokens = goldens_["sentinels"].get<std::vector<std::string>>();
    config_.fim_rate = golden["fim_rate"];
    config_.fim_spm_rate = golden["fim_spm_rate"];
  }

  const nlohmann::json goldens_ = nlohmann::json::parse(content_of("tests/reference/infilling/goldens.json"));
};

TEST_F(InfillingTest, IdsAreThoseOfTheScript) {
  std::string rows, text;
  for (const auto& document : goldens_["texts"]) {
    rows += nlohmann::json{{"text", document}}.dump() + "\n\n";  // a blank line has no number
    text += document.get<std::string>() + "@@@@";
  }
  folder_.file("rows.jsonl", rows);
  folder_.file("texts.txt", text);
  ASSERT_EQ(goldens_["cases"].size(), 6U);
  for (const auto& golden : goldens_["cases"]) {
    take(golden);
    const auto wanted = golden["documents"].get<Documents>();
    config_.train = {folder_ / "rows.jsonl"};
    EXPECT_EQ(documents(), wanted) << golden["tokenizer"];
    config_.document_separator = "@@@@";
    config_.train = {folder_ / "texts.txt"};
    EXPECT_EQ(documents(), wanted) << golden["tokenizer"];
    config_.fim_spm_rate = 1 - config_.fim_spm_rate;
    if (config_.fim_spm_rate != 0.5) {
      EXPECT_NE(documents(), wanted) << "the control: another order";
    }
    config_.fim_rate = 0;
    EXPECT_NE(documents(), wanted) << "the control: nothing is cut";
  }
}

TEST_F(InfillingTest, TheCacheKnowsTheRates) {
  take(goldens_["cases"][0]);
  config_.train = {folder_.file("a.txt", "some text to cut")};
  open();
  EXPECT_TRUE(tokenized());
  open();
  EXPECT_FALSE(tokenized());
  config_.fim_spm_rate = 0.25;
  open();
  EXPECT_TRUE(tokenized());
}

/// A document of several pieces is one text: its middle can be anywhere in it.
TEST_F(InfillingTest, ALongDocumentIsCutOnce) {
  take(goldens_["cases"][0]);
  std::string text;
  while (text.size() < (size_t{3} << 20)) text += "past the light\n";
  config_.train = {folder_.file("long.txt", text)};
  const Documents found = documents();
  ASSERT_EQ(found.size(), 1U);
  const std::unique_ptr<Tokenizer> tokenizer = make_byte_tokenizer();
  const std::vector<int32_t>& ids = found.front();
  for (const int32_t sentinel : {420, 421, 422}) EXPECT_EQ(std::ranges::count(ids, sentinel), 1) << sentinel;
  const Dataset data = open();
  const auto part = [&](int32_t from, int32_t to) {
    const auto begin = std::ranges::find(ids, from) + 1;
    const auto end = to < 0 ? ids.end() - 1 : std::ranges::find(ids, to);
    return data.tokenizer->decode({begin, end});
  };
  EXPECT_EQ(part(420, 422) + part(421, -1) + part(422, 421), text) << "prefix, middle and suffix";
}

TEST_F(InfillingTest, SentinelsOfKnownModelsAndMissingOnes) {
  take(goldens_["cases"][0]);
  config_.train = {folder_.file("a.txt", "some text to cut")};
  for (const std::vector<std::string>& names : std::vector<std::vector<std::string>>{
           {"<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"},
           {"\u2581<PRE>", "\u2581<MID>", "\u2581<SUF>"},
           {"<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581end\uff5c>", "<\uff5cfim\u2581hole\uff5c>"},
           {"[PREFIX]", "[MIDDLE]", "[SUFFIX]"}}) {
    config_.add_tokens = names;
    const Documents found = documents();
    EXPECT_EQ(found.front().front(), 420) << names[0];
    EXPECT_EQ(std::ranges::count(found.front(), 422), 1) << names[2];
  }
  config_.add_tokens = {"<A>", "<B>", "<C>"};
  EXPECT_THAT(refused(), AllOf(HasSubstr(" data.fim_tokens: "), HasSubstr("data.add_tokens")));
  config_.fim_tokens = {"<C>", "<A>", "<B>"};
  EXPECT_EQ(documents().front().front(), 422);
  config_.fim_tokens = {"<C>", "<A>", "<D>"};
  EXPECT_THAT(refused(), HasSubstr("has no token <D>"));
}

TEST_F(InfillingTest, OtherRowsAreRefused) {
  take(goldens_["cases"][0]);
  config_.train = {folder_.file("ids.jsonl", "{\"input_ids\": [1, 2]}\n")};
  EXPECT_THAT(refused(), AllOf(HasSubstr("ids.jsonl: data.fim_rate"), HasSubstr("llmtool prepare --fim-rate")));
  config_.instructions = true;
  config_.train = {folder_.file("chats.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n")};
  EXPECT_THAT(refused(), HasSubstr("chats.jsonl: data.fim_rate cuts texts, and it has conversations"));
}

}  // namespace
}  // namespace llmtrain
