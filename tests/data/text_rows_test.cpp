// .jsonl rows of text: from files to tokens, and hostile files with their accepted twins.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "data/dataset.hpp"
#include "data/files/jsonl.hpp"
#include "data_files.hpp"
#include "harness/peak_memory.hpp"
#include "parallel/local_communicator.hpp"

namespace llmtrain {
namespace {

using test::all_tokens;
using test::Folder;
using test::offsets_of;
using test::peak_memory;
using test::refusal;
using test::with_sanitizer;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class TextRows : public testing::Test {
 protected:
  TextRows() {
    config_.cache = folder_ / "cache";
    config_.validation_fraction = 0;
    config_.tokenizer = "bytes";
    batch_.sequence_length = 8;
    batch_.global = 1;
  }

  Dataset open() {
    reports_.clear();
    return open_dataset(config_, batch_, *communicator_, [&](const std::string& line) { reports_.push_back(line); });
  }
  /// Returns the result for a file with this content.
  std::string verdict(const std::string& content) {
    config_.train = {folder_.file("x.jsonl", content)};
    return refusal([&] { open(); });
  }

  Folder folder_;
  SampleRules config_;
  BatchConfig batch_;
  std::unique_ptr<Communicator> communicator_ = make_local_communicator();
  std::vector<std::string> reports_;
};

TEST_F(TextRows, ARowIsADocument) {
  config_.train = {folder_.file("x.jsonl", "{\"text\":\"ab\"}\r\n\n{\"text\":\"\"}\n{\"id\":1,\"text\":\"\\u00e9\"}")};
  const Dataset data = open();
  EXPECT_THAT(all_tokens(*data.train), ElementsAre('a', 'b', 256, 0xC3, 0xA9, 256));
  EXPECT_THAT(offsets_of(*data.train), ElementsAre(0, 3, 6));
  EXPECT_EQ(data.train->info().skipped_documents, 1);
  EXPECT_EQ(data.train->info().characters, 3);
  EXPECT_EQ(data.train->info().bytes, 4);
  EXPECT_THAT(reports_, testing::Contains(HasSubstr("1 empty documents were skipped, the first row at")));
  EXPECT_THAT(reports_, testing::Contains(HasSubstr("x.jsonl:3")));
}

TEST_F(TextRows, BosAndColumnAndCharacters) {
  config_.tokenizer = "char";
  config_.add_bos = true;
  config_.text_column = "body";
  config_.train = {folder_.file("x.jsonl", "{\"text\":\"zzz\",\"body\":\"ba\"}\n{\"body\":\"c\"}\n")};
  const Dataset data = open();
  EXPECT_EQ(data.vocabulary_size, 5);  // a b c EOS BOS, no z
  EXPECT_THAT(all_tokens(*data.train), ElementsAre(4, 1, 0, 3, 4, 2, 3));
  config_.text_column = "text";
  EXPECT_THAT(refusal([&] { open(); }), AllOf(HasSubstr("65 "), HasSubstr("x.jsonl:2: byte 27: no column 'text'")));
}

/// In SFT a text begins like a row of a conversation: with BOS where the tokenizer puts it, and with one.
TEST_F(TextRows, BeginWithBosOnce) {
  const auto added = [](int id, const char* content) {
    return nlohmann::json{{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
                          {"rstrip", false}, {"normalized", false}, {"special", true}};
  };
  nlohmann::json json = {{"version", "1.0"}, {"added_tokens", {added(0, "<s>"), added(1, "</s>")}}};
  json["model"] = {
      {"type", "BPE"}, {"vocab", {{"<s>", 0}, {"</s>", 1}, {"a", 2}, {"b", 3}}}, {"merges", nlohmann::json::array()}};
  json["post_processor"] = nlohmann::json::parse(
      R"({"type": "TemplateProcessing", "pair": [], "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
          {"Sequence": {"id": "A", "type_id": 0}}],
          "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}})");
  config_.tokenizer = folder_.file("tokenizer.json", json.dump());
  config_.train = {folder_.file("x.jsonl", "{\"text\":\"ab\"}\n{\"text\":\"<s>b\"}\n")};
  EXPECT_THAT(all_tokens(*open().train), ElementsAre(2, 3, 1, 0, 3, 1));
  config_.begins_like_tokenizer = true;
  EXPECT_THAT(all_tokens(*open().train), ElementsAre(0, 2, 3, 1, 0, 3, 1));
  // EOS, too, is there once; pre-training ends every text with its own.
  config_.train = {folder_.file("y.jsonl", "{\"text\":\"a</s>\"}\n{\"text\":\"<s>\"}\n{\"text\":\"</s>b\"}\n")};
  EXPECT_THAT(all_tokens(*open().train), ElementsAre(0, 2, 1, 0, 1, 0, 1, 3, 1));
  config_.train = {folder_.file("z.txt", "ab</s>")};
  EXPECT_THAT(all_tokens(*open().train), ElementsAre(0, 2, 3, 1));
  config_.begins_like_tokenizer = false;
  EXPECT_THAT(all_tokens(*open().train), ElementsAre(2, 3, 1, 1));
  config_.train = {folder_.path() + "/y.jsonl"};
  EXPECT_THAT(all_tokens(*open().train), ElementsAre(2, 1, 1, 0, 1, 1, 3, 1));
}

TEST_F(TextRows, FilesOfTextAndOfRowsGoTogether) {
  config_.train = {folder_.file("a.txt", "one"), folder_.file("b.jsonl", "{\"text\":\"two\"}\n"),
                   folder_.file("c.txt", "three")};
  EXPECT_THAT(offsets_of(*open().train), ElementsAre(0, 4, 8, 14));
  config_.train.push_back(folder_.file("d.jsonl", "{\"input_ids\":[1]}\n"));
  EXPECT_THAT(refusal([&] { open(); }), HasSubstr("cannot be mixed"));
}

TEST_F(TextRows, AreTheSameAsTextWithSeparators) {
  std::mt19937 random(3);
  const std::vector<std::string> characters = {"a", "\"", "\\", "\u00e9", "\u20ac", "\U0001F600", "\t", "z"};
  std::string text, rows;
  for (int d = 0; d < 30000; ++d) {
    std::string document;
    const size_t size = d == 500 ? 1'500'000 : 1 + random() % 150;
    while (document.size() < size) document += characters[random() % characters.size()];
    text += (d > 0 ? "\n" : "") + document;
    rows += nlohmann::json{{"text", document}, {"n", d}}.dump(-1, ' ', d % 2 == 0) + "\n";
  }
  config_.document_separator = "\n";
  for (const char* tokenizer : {"bytes", "char"}) {
    config_.tokenizer = tokenizer;
    config_.train = {folder_.file("a.txt", text)};
    const Dataset plain = open();
    config_.train = {folder_.file("a.jsonl", rows)};
    const Dataset data = open();
    EXPECT_TRUE(data.tokenizer->decode(all_tokens(*data.train)) == plain.tokenizer->decode(all_tokens(*plain.train)));
    EXPECT_TRUE(offsets_of(*data.train) == offsets_of(*plain.train));
    EXPECT_EQ(data.vocabulary_size, plain.vocabulary_size - (data.tokenizer->kind() == "char" ? 1 : 0))
        << "the separator is in no row";
    EXPECT_EQ(data.train->info().characters, plain.train->info().characters - 29999);
  }
}

TEST_F(TextRows, HostileFilesAndTheirTwins) {
  const std::string good = "{\"text\":\"good\"}\n", nothing = "nothing was thrown";
  const auto nested = [](int depth) {
    const size_t n = static_cast<size_t>(depth);
    return "{\"text\":\"x\",\"a\":" + std::string(n, '[') + std::string(n, ']') + "}\n";
  };
  EXPECT_EQ(verdict(good + good), nothing);
  EXPECT_THAT(verdict(good + nested(100000)), AllOf(HasSubstr("65 "), HasSubstr("x.jsonl:2: byte 95: nested deeper")));
  EXPECT_EQ(verdict(good + nested(63)), nothing);
  EXPECT_THAT(verdict(good + "{\"text\":\"\\ud800\"}\n"), HasSubstr("x.jsonl:2: byte 31: not valid JSON: a lone"));
  EXPECT_EQ(verdict(good + "{\"text\":\"\\ud83d\\ude00\"}\n"), nothing);
  EXPECT_EQ(verdict("\xEF\xBB\xBF" + good), nothing);
  EXPECT_THAT(verdict("\xEF\xBB\xBF{\"text\":3}\n"), HasSubstr("x.jsonl:1: byte 12: 'text' must be a text"));
  EXPECT_THAT(verdict(good + "\xEF\xBB\xBF" + good),
              HasSubstr("x.jsonl:2: byte 16: the line begins with a byte order"));
  EXPECT_THAT(verdict(good + std::string("{\"text\":\"a\0\"}\n", 14)), HasSubstr("x.jsonl:2: byte 26: a NUL"));
  EXPECT_EQ(verdict(good + "{\"text\":\"a\\u0000\"}\n"), nothing);
  EXPECT_EQ(verdict(good + "{\"text\":\"crlf\"}\r\n"), nothing);
  EXPECT_EQ(verdict(good + "{\"text\":\"no line end\"}"), nothing);
  EXPECT_THAT(verdict(good + "{\"text\":\"trunca"), HasSubstr("x.jsonl:2: byte 31: not valid JSON: the line ends too"));
  EXPECT_THAT(verdict(""), HasSubstr("65 "));
  EXPECT_THAT(verdict("\n \r\n\t\n\r"), AllOf(HasSubstr("65 "), HasSubstr("it has no row")));
  const std::string empty = "{\"text\":\"\"}\n";
  EXPECT_THAT(verdict(good + empty + empty), AllOf(HasSubstr("65 "), HasSubstr("2 of 3 rows are empty")));
  EXPECT_EQ(verdict(good + good + empty + empty), nothing);
  EXPECT_THAT(verdict(good + "{\"input_ids\":[1]}\n"), HasSubstr("x.jsonl:2: byte 16: input_ids, which the first"));
  EXPECT_THAT(verdict("{\"input_ids\":[1]}\n" + good),
              HasSubstr("x.jsonl:2: byte 18: no input_ids: every row of token ids"));
}

TEST_F(TextRows, AFourGigabyteLineEndsInBoundedMemory) {
  const std::string path = folder_.file("x.jsonl", "{\"text\":\"good\"}\n{\"text\":\"");
  std::filesystem::resize_file(path, uint64_t{4} << 30);  // sparse: NULs to the end
  config_.train = {path};
  config_.row_limit = int64_t{16} << 20;
  const int64_t before = peak_memory();
  EXPECT_THAT(refusal([&] { open(); }),
              AllOf(HasSubstr("65 "), HasSubstr("x.jsonl:2: byte 16: the row has more than 268435456 bytes, more than "
                                                "the 16777216 of data.row_limit")));
  EXPECT_LT(peak_memory() - before, with_sanitizer(config_.row_limit + (int64_t{64} << 20)));
  const std::string longest(static_cast<size_t>(config_.row_limit) - 11, 'x');
  EXPECT_EQ(verdict("{\"text\":\"good\"}\n{\"text\":\"" + longest + "\"}\r\n"), "nothing was thrown");
  EXPECT_THAT(verdict("{\"text\":\"good\"}\n{\"text\":\"" + longest + "x\"}\n"),
              HasSubstr("x.jsonl:2: byte 16: the row has 16777217 bytes"));
  EXPECT_EQ(verdict("{\"id\":\"" + longest + "\",\n\"text\":\"x\"}\n").substr(0, 3), "65 ") << "the first row";
  config_.row_limit = default_row_limit;
  EXPECT_EQ(verdict("{\"text\":\"good\"}\n{\"text\":\"" + longest + "x\"}\n"), "nothing was thrown");
}

}  // namespace
}  // namespace llmtrain
