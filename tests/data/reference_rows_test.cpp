// Files of rows as Python's packages read them: tests/reference/rows/make_rows.py.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/files/document_reader.hpp"
#include "data/files/input_kind.hpp"
#include "data/files/jsonl.hpp"
#include "dataset_fixture.hpp"

namespace llmtrain {
namespace {

using test::all_of_mask;
using test::all_tokens;
using test::content_of;
using test::DatasetTest;
using test::offsets_of;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

const std::string folder = "tests/reference/rows/";

class ReferenceRows : public DatasetTest {
 protected:
  ReferenceRows() { config_.tokenizer = "bytes"; }
  /// Returns the documents of a file of text or rows of text.
  std::vector<std::string> texts(const std::string& path) {
    config_.train = {path};
    const Dataset data = open();
    std::vector<std::string> all;
    const std::vector<int32_t> ids = all_tokens(*data.train);
    const std::vector<uint64_t> offsets = offsets_of(*data.train);
    for (size_t d = 0; d + 1 < offsets.size(); ++d) {
      all.push_back(data.tokenizer->decode({ids.data() + offsets[d], ids.data() + offsets[d + 1] - 1}));
    }
    return all;
  }
  /// Reads like validate and split.
  static std::vector<std::string> read_one_by_one(const std::string& path) {
    DocumentReader reader(find_input_files({path}, {}).front(), int64_t{1} << 30);
    std::vector<std::string> all;
    for (DocumentSegment part; reader.next(part);) {
      if (!is_blank(part.text)) parse_text_row(part.text, "text", all.emplace_back());
    }
    return all;
  }
  const nlohmann::json expected_ = nlohmann::json::parse(content_of(folder + "expected.json"));
};

TEST_F(ReferenceRows, TextsAreThoseOfDatasets) {
  ASSERT_GT(expected_["texts"].size(), 15U);
  for (const auto& [name, wanted] : expected_["texts"].items()) {
    EXPECT_EQ(texts(folder + name), wanted.get<std::vector<std::string>>()) << name;
    EXPECT_EQ(read_one_by_one(folder + name), wanted.get<std::vector<std::string>>()) << name;
  }
}

TEST_F(ReferenceRows, AnotherNameIsToldAndCanMeanText) {
  const std::string content = content_of(folder + "lines.txt");
  texts(folder + "lines.txt");
  EXPECT_THAT(reports_, Contains(HasSubstr("lines.txt: its lines are JSON objects and are read as rows")));
  texts(folder + "capitals.JSONL");
  EXPECT_THAT(reports_, Not(Contains(HasSubstr("are JSON objects"))));
  config_.json_as_text = true;
  EXPECT_EQ(texts(folder + "lines.txt"), std::vector<std::string>{content}) << "although the cache has its rows";
  EXPECT_EQ(texts(folder + "lines.json"), std::vector<std::string>{content});
  EXPECT_EQ(texts(folder + "lines.ndjson").size(), 3U) << "by its name";
}

// These texts begin like rows, but are not rows.
TEST_F(ReferenceRows, SourceTextStaysText) {
  for (const std::string text : {"{\n  \"a\": 1\n}\n", "{\n}\n", "{}\n{}\n", "{x: 1}\n", "{\"a\", \"b\"}\n",
                                 "{\"a\": 1} is JSON.\n", "{\"a\": 1}\nand then text\n", "{'text': 'a'}\n",
                                 "{% block %}\n", "[1]\n", "{\"a\": [1}\n", "{", "{\"", "\xEF\xBB\xBF{a}"}) {
    const std::string bare = text.starts_with("\xEF\xBB\xBF") ? text.substr(3) : text;
    EXPECT_EQ(texts(folder_.file("x.js", text)), std::vector<std::string>{bare}) << text;
  }
  const std::string commented = "# words\n// more\n{\"text\": \"a\"}\n{\"text\": \"b\"}\n";
  EXPECT_EQ(texts(folder_.file("x.txt", commented)), std::vector<std::string>{commented});
  EXPECT_THAT(reports_, Contains(HasSubstr("x.txt: lines of JSON objects follow the comments")));
  // Rows, although the first one is empty, or far behind.
  config_.train = {folder_.file("x", "{}\n{\"text\": \"a\"}\n")};
  EXPECT_THAT(refused(), HasSubstr("x:1: byte 0: no column 'text'"));
  EXPECT_EQ(texts(folder_.file("x", std::string(2 << 20, '\n') + "{\"text\": \"a\"}\n{\"text\": \"b\"}\n")).size(), 2U);
  config_.train = {folder_.file("x.jsonl", "\x1E{\"text\": \"a\"}\n\x1E{\"text\": \"b\"}\n")};
  EXPECT_THAT(refused(), AllOf(HasSubstr("x.jsonl: byte 0: 0x1E"), HasSubstr("RFC 7464")));
  // Rows, although something is wrong with the second one.
  config_.train = {folder_.file("x", "{\"text\": \"a\"}\n{\"text\": \"b\"\n")};
  EXPECT_THAT(refused(), HasSubstr("x:2: byte 26: not valid JSON"));
  config_.train = {folder_.file("x", "{\"text\": \"a\"},\n{\"text\": \"b\"},\n")};
  EXPECT_THAT(refused(), HasSubstr("x:1: byte 13: not valid JSON"));
  config_.train = {folder_.file("x", "{\"text\": \"a\"}\r{\"text\": \"b\"}\r")};
  EXPECT_THAT(refused(), HasSubstr("x:1: byte 14: not valid JSON"));
  config_.train = {folder_.file("x", "{\"text\": \"" + std::string(3 << 20, 'x'))};
  EXPECT_THAT(refused(), HasSubstr("the line ends too early"));
}

TEST_F(ReferenceRows, PaddingIsWhatCollatorsLeaveOut) {
  config_.train = {folder + "padded.jsonl"};
  const Dataset data = open();
  const std::vector<int32_t> ids = all_tokens(*data.train);
  const std::vector<uint8_t> mask = all_of_mask(*data.train);
  const std::vector<uint64_t> offsets = offsets_of(*data.train);
  ASSERT_EQ(offsets.size(), expected_["padded"].size() + 1);
  for (size_t d = 0; d + 1 < offsets.size(); ++d) {
    const auto begin = static_cast<std::ptrdiff_t>(offsets[d]), end = static_cast<std::ptrdiff_t>(offsets[d + 1]);
    const auto slice = [&](const auto& all) {
      return nlohmann::json(std::vector(all.begin() + begin, all.begin() + end));
    };
    EXPECT_EQ(slice(ids), expected_["padded"][d]["ids"]) << d;
    EXPECT_EQ(slice(mask), expected_["padded"][d]["targets"]) << d;
  }
}

}  // namespace
}  // namespace llmtrain
