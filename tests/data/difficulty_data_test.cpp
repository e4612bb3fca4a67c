// Difficulties of curriculum.difficulty = column:NAME: from a column of rows to the values of documents, of every
// format that trains without preferences; what has none is refused with its line.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/formats/row_format.hpp"
#include "dataset_fixture.hpp"

namespace llmtrain {
namespace {

using test::refusal;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class DifficultyData : public test::DatasetTest {
 protected:
  DifficultyData() {
    config_.tokenizer = "bytes";
    config_.use = DataUse::training;
    config_.packing = DataConfig::Packing::none;
    config_.difficulty = "score";
    batch_.sequence_length = 64;
  }
  Dataset open(const std::string& name, const std::string& rows) {
    config_.train = {folder_.file(name, rows)};
    return DatasetTest::open();
  }
  std::string refused(const std::string& name, const std::string& rows) {
    return refusal([&] { open(name, rows); });
  }
};

const std::string text_rows = R"({"text": "first", "score": 2.5}
{"text": "", "score": 7}
{"text": "last", "score": -1}
)";

TEST_F(DifficultyData, RowsOfTextHaveValues) {
  for (int i = 0; i < 2; ++i) {  // made, and read from the cache
    const Dataset data = open("rows.jsonl", text_rows);
    EXPECT_EQ(data.train->info().column, "difficulty");
    EXPECT_FALSE(data.train->info().has_groups());
    EXPECT_THAT(data.train->values(), ElementsAre(2.5, -1)) << "the empty row is left out";
  }
  EXPECT_FALSE(tokenized());
  config_.difficulty.clear();
  EXPECT_THAT(open("rows.jsonl", text_rows).train->values(), IsEmpty()) << "control: the key of the cache differs";
}

TEST_F(DifficultyData, RowsOfConversationsHaveValues) {
  config_.instructions = true;
  const std::string end = R"(, "score": 3})";
  const Dataset data = open("rows.jsonl", R"({"prompt": "p", "completion": "c")" + end);
  EXPECT_THAT(data.train->values(), ElementsAre(3));
  EXPECT_EQ(data.train->info().rows.used, 1);
  const std::string turns = R"([{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}])";
  const std::string shared = R"([{"from": "human", "value": "u"}, {"from": "gpt", "value": "a"}])";
  for (const auto& [format, row] :
       std::vector<std::pair<std::string, std::string>>{{"text", R"({"text": "t")"},
                                                        {"alpaca", R"({"instruction": "i", "output": "o")"},
                                                        {"prompt_completion", R"({"prompt": "p", "completion": "c")"},
                                                        {"messages", R"({"messages": )" + turns},
                                                        {"sharegpt", R"({"conversations": )" + shared}}) {
    const RowReader reader(format, {"difficulty:score"}, true);
    EXPECT_TRUE(reader.has_difficulties());
    EXPECT_EQ(reader.read_documents(row + end).value, 3) << format;
  }
  const RowReader prefers("unpaired", {"difficulty:score"}, true);
  EXPECT_FALSE(prefers.has_difficulties()) << "control: preferences have values of their own";
}

TEST_F(DifficultyData, RowsWithoutANumberAreRefused) {
  const auto of_row = [&](const std::string& rest) {
    return refused("rows.jsonl", R"({"text": "first", "score": 1})"
                                 "\n"
                                 R"({"text": "second")" +
                                     rest + "}\n");
  };
  EXPECT_THAT(of_row(""), AllOf(HasSubstr("65 "), HasSubstr("rows.jsonl:2: there is no column 'score'")));
  for (const char* value : {"null", "\"3\"", "true", "[1]"}) {
    EXPECT_THAT(of_row(std::string(R"(, "score": )") + value), HasSubstr("rows.jsonl:2: score: must be a number"))
        << value;
  }
  EXPECT_THAT(of_row(R"(, "score": 1e300)"), HasSubstr("rows.jsonl:2: score: is too large for fp32"));
}

TEST_F(DifficultyData, FilesWithoutDifficultiesAreRefused) {
  EXPECT_THAT(refused("text.txt", "a text"),
              AllOf(HasSubstr("65 "), HasSubstr("text.txt: it is a text, which has no")));
  EXPECT_THAT(refused("ids.jsonl", R"({"input_ids": [1, 2, 3], "score": 1})"), HasSubstr("it is rows of input_ids"));
  const std::string column = std::exchange(config_.difficulty, std::string());
  const std::string plain = open("plain.jsonl", text_rows).train->info().path;
  config_.difficulty = column;
  config_.train = {plain};
  EXPECT_THAT(DatasetTest::refused(), HasSubstr("llmtool prepare --columns difficulty:score"));
  config_.train = {open("rows.jsonl", text_rows).train->info().path};
  EXPECT_THAT(DatasetTest::open().train->values(), ElementsAre(2.5, -1)) << "control: a token file with difficulties";
}

TEST_F(DifficultyData, ValidationNeedsNone) {
  config_.validation = {folder_.file("validation.jsonl", R"({"text": "held out"})")};
  const Dataset data = open("rows.jsonl", text_rows);
  EXPECT_THAT(data.train->values(), ElementsAre(2.5, -1));
  EXPECT_THAT(data.validation->values(), IsEmpty());
  config_.validation = {open("more.jsonl", text_rows).train->info().path};
  EXPECT_THAT(open("rows.jsonl", text_rows).validation->values(), ElementsAre(2.5, -1)) << "they do no harm";
}

}  // namespace
}  // namespace llmtrain
