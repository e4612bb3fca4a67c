// Data for an existing model whose embedding has fewer rows than the tokenizer has tokens: a token without a row is
// refused with its location, whatever the cache holds; everything else is unchanged.

#include "data/stream/embedding_rows.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/dataset_fixture.hpp"
#include "text/load_tokenizer.hpp"
#include "text/tokens_beyond_embedding.hpp"

namespace llmtrain {
namespace {

using test::all_tokens;
using test::refusal;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* missing_pad = "the token \"[PAD]\" has the id 4, but the model's embedding has only 4 rows";

class EmbeddingRowsTest : public test::DatasetTest {
 protected:
  /// "a", "b", "</s>", "ab" are 0 to 3, "[PAD]" is 4.
  EmbeddingRowsTest() {
    config_.tokenizer = folder_.file(
        "tokenizer.json",
        R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":2,"content":"</s>",)"
        R"("single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],"normalizer":null,)"
        R"("pre_tokenizer":null,"post_processor":null,"decoder":null,)"
        R"("model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":3,"</s>":2},"merges":["a b"]}})");
    folder_.file("tokenizer_config.json", R"({"eos_token":"</s>"})");
    folder_.file("special_tokens_map.json", R"({"pad_token":"[PAD]"})");
    config_.tokenizer = folder_.path();
    config_.tokenizer_given = true;
  }

  /// Opens the data for a model with that many rows; 0: for a new model.
  Dataset open_for(int64_t rows) {
    config_.embedding_rows = rows;
    return open();
  }
  std::string refused_for(int64_t rows) {
    return refusal([&] { open_for(rows); });
  }
  std::vector<std::string> check(DataFacts& facts) const {
    std::vector<std::string> errors;
    facts = check_data_files(config_, [&](const char* key, const UserError& error) {
      errors.push_back(std::string(key) + " " + std::to_string(static_cast<int>(error.code())) + " " + error.what());
    });
    return errors;
  }
};

TEST_F(EmbeddingRowsTest, TextWithoutTheTokenIsAsEver) {
  config_.train = {folder_.file("a.txt", "aabb")};
  const Dataset free = open_for(0);
  EXPECT_EQ(free.vocabulary_size, 5);
  EXPECT_EQ(free.note, "");
  EXPECT_EQ(open_for(5).note, "");
  const Dataset bounded = open_for(4);
  EXPECT_FALSE(tokenized()) << "the cache holds what is needed";
  EXPECT_EQ(bounded.vocabulary_size, 4);
  EXPECT_EQ(all_tokens(*bounded.train), all_tokens(*free.train));
  EXPECT_THAT(bounded.note,
              AllOf(HasSubstr("5 tokens"), HasSubstr("4 rows"), HasSubstr("\"[PAD]\" (id 4) has no row")));
  DataFacts facts;
  EXPECT_THAT(check(facts), testing::IsEmpty());
  EXPECT_EQ(facts.vocabulary_size, 4);
  EXPECT_EQ(facts.note, bounded.note) << "also without reading the text";
}

TEST_F(EmbeddingRowsTest, TextWithTheTokenIsRefusedWhereItStands) {
  struct Case {
    const char* name;
    const char* text;
    const char* place;
  };
  const Case cases[] = {
      {"a.txt", "abab\nab[PAD]b", ":2: byte 7: "},
      {"b.jsonl", "{\"text\":\"ab\"}\n\n{\"text\":\"b[PAD]\"}\n", ":3: byte 15: at byte 1 of its text: "},
      {"c.jsonl", "{\"input_ids\":[0,1]}\n{\"input_ids\":[3,4]}\n", ":2: byte 20: "}};
  for (const Case& c : cases) {
    config_.train = {folder_.file(c.name, c.text)};
    const std::string expected = "65 " + config_.train.front() + c.place + missing_pad;
    config_.cache = folder_ / (std::string(c.name) + ".cache");
    EXPECT_THAT(refused_for(4), HasSubstr(expected)) << "before anything is in the cache";
    EXPECT_EQ(open_for(0).vocabulary_size, 5);
    EXPECT_TRUE(tokenized()) << "nothing that was refused is kept";
    EXPECT_EQ(open_for(5).vocabulary_size, 5);
    EXPECT_THAT(refused_for(4), HasSubstr(expected)) << "with the cache of another model";
    config_.validation = {config_.train.front()};
    config_.train = {folder_.file("sound.txt", "ab")};
    if (std::string(c.name) != "c.jsonl") {
      EXPECT_THAT(refused_for(4), HasSubstr(expected)) << "as validation data";
    }
    config_.validation.clear();
  }
  config_.train = {folder_.file("d.jsonl", R"({"input_ids":[3,4],"attention_mask":[1,0]})")};
  EXPECT_EQ(open_for(4).train->tokens(), 1) << "padding is left out";
}

TEST_F(EmbeddingRowsTest, TokenFilesAreJudgedByTheirIds) {
  for (const auto& [name, text] : {std::pair("sound", "abab"), std::pair("padded", "ab[PAD]")}) {
    config_.train = {folder_.file(std::string(name) + ".txt", text)};
    std::filesystem::copy(open_for(0).train->info().path, folder_ / (std::string(name) + ".h5"));
  }
  config_.train = {folder_ / "sound.h5"};
  const Dataset data = open_for(4);
  EXPECT_EQ(data.vocabulary_size, 4);
  EXPECT_THAT(data.note, HasSubstr("\"[PAD]\" (id 4)"));
  DataFacts facts;
  EXPECT_THAT(check(facts), testing::IsEmpty());
  EXPECT_EQ(facts.note, data.note);
  config_.train.push_back(folder_ / "padded.h5");
  EXPECT_EQ(open_for(5).vocabulary_size, 5);
  EXPECT_THAT(refused_for(4), HasSubstr("65 " + config_.train.back() + ": token 2 of document 1: " + missing_pad));
  // A file that changes later cannot produce such an id either.
  const auto bounded = open_token_file(folder_ / "padded.h5", 4);
  EXPECT_THAT(refusal([&] { all_tokens(*bounded); }), HasSubstr("65 "));
  EXPECT_EQ(all_tokens(*open_token_file(folder_ / "padded.h5", 5)), (std::vector<int32_t>{3, 4, 2}));
}

TEST_F(EmbeddingRowsTest, TheEndOfDocumentsMustHaveARow) {
  config_.train = {folder_.file("a.txt", "ab")};
  config_.eos_token = "[PAD]";
  EXPECT_EQ(open_for(5).vocabulary_size, 5);
  const std::string expected = "EOS cannot end documents: " + std::string(missing_pad);
  EXPECT_THAT(refused_for(4), HasSubstr("65 " + folder_.path() + ": " + expected));
  DataFacts facts;
  EXPECT_THAT(check(facts), testing::ElementsAre(AllOf(HasSubstr("data.tokenizer 65 "), HasSubstr(expected))));
}

TEST_F(EmbeddingRowsTest, AMessageNamesAFewTokens) {
  folder_.file("special_tokens_map.json",
               R"({"pad_token":"[PAD]","additional_special_tokens":["<1>","<2>","<3>","<4>"]})");
  const auto tokenizer = load_tokenizer(folder_.path());
  EXPECT_EQ(tokenizer->vocabulary_size(), 9);
  EXPECT_THAT(tokens_without_row(*tokenizer, 7), HasSubstr("7 rows: \"<3>\" (id 7), \"<4>\" (id 8) have no row."));
  EXPECT_THAT(tokens_without_row(*tokenizer, 4),
              AllOf(HasSubstr("(id 6) and 2 more have no row."), Not(HasSubstr("id 7"))));
  EXPECT_EQ(tokens_without_row(*tokenizer, 9), "");
  EXPECT_THAT(missing_row(nullptr, 9, 9), HasSubstr("a token has the id 9, but the model's embedding has only 9 rows"));
}

}  // namespace
}  // namespace llmtrain
