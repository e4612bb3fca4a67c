// Tables give the documents, tokens and masks of the same rows as JSON lines: tests/reference/tables/make_tables.py.

#include <nlohmann/json.hpp>

#include "data/files/document_reader.hpp"
#include "data/files/input_kind.hpp"
#include "data/formats/row_format.hpp"
#include "dataset_fixture.hpp"
#include "table_files.hpp"

namespace llmtrain {
namespace {

using nlohmann::ordered_json;
using test::all_of_mask;
using test::all_tokens;
using test::content_of;
using test::offsets_of;
using test::refusal;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const std::string folder = test::table_folder;

/// All of a data set.
struct Content {
  std::vector<int32_t> ids;
  std::vector<uint8_t> mask;
  std::vector<uint64_t> offsets;
  std::vector<float> values;
  bool operator==(const Content&) const = default;
};

class TableRows : public test::DatasetTest {
 protected:
  TableRows() {
    config_.tokenizer = "bytes";
    chat_.template_name = folder_.file(
        "chat.jinja",
        "{% for m in messages %}<{{ m.role }}>{{ m.tool_calls | tojson if m.tool_calls else '' }}{% if m.role == "
        "'assistant' %}{% generation %}{{ m.content or '' }};{% endgeneration %}{% else %}{{ m.content }};{% endif %}"
        "{% endfor %}");
  }

  Content content(const std::string& path) {
    config_.train = {path};
    const Dataset data =
        open_dataset(config_, batch_, *communicator_, [&](const std::string& line) { reports_.push_back(line); },
                     {chat_, read_chat_files(chat_.template_name, "")});
    const TokenFile& train = *data.train;
    Content all{all_tokens(train), {}, offsets_of(train), {train.values().begin(), train.values().end()}};
    if (train.info().has_mask) all.mask = all_of_mask(train);
    return all;
  }
  void expect_same(const std::vector<std::string>& names, const std::string& lines) {
    const Content wanted = content(folder + lines);
    ASSERT_GT(wanted.ids.size(), 5U);
    for (const std::string& name : names) EXPECT_EQ(content(folder + name), wanted) << name;
    const std::string text = content_of(folder + lines);
    EXPECT_NE(content(folder_.file("less.jsonl", text.substr(text.find('\n') + 1))), wanted) << "the control";
  }
  /// Rows as validate and split read them.
  static std::vector<ordered_json> rows(const std::string& path, const std::vector<std::string>& columns = {}) {
    InputFile file = find_input_files({path}, {}).front();
    file.columns.read = columns;
    DocumentReader reader(file, int64_t{1} << 30);
    std::vector<ordered_json> all;
    for (DocumentSegment row; reader.next(row);) all.push_back(ordered_json::parse(row.text));
    return all;
  }

  ChatConfig chat_;
};

TEST_F(TableRows, TextsOfParquetAndArrow) {
  LLMTRAIN_NEEDS_ARROW();
  expect_same({"text_snappy.parquet", "text_zstd.parquet", "text_gzip.parquet", "text_plain.parquet",
               "text_dictionary.parquet", "text_file.arrow", "text_stream.arrow", "text_view.arrow",
               "text_dictionary.arrow", "text_lz4.feather", "text_zstd.feather"},
              "text.jsonl");
}

TEST_F(TableRows, TextsOfCsv) {
  expect_same(
      {"fields_commas.csv", "fields_quoted.csv", "fields_tabs.tsv", "fields_packed.csv.gz", "fields_marked.csv"},
      "fields.jsonl");
}

TEST_F(TableRows, IdsAndMasks) {
  LLMTRAIN_NEEDS_ARROW();
  config_.tokenizer = "tests/reference/tokenizers/synthetic/gpt2.json";
  config_.eos_token = "</s>";
  expect_same({"ids.parquet", "ids.arrow"}, "ids.jsonl");
}

TEST_F(TableRows, ConversationsAndPreferences) {
  LLMTRAIN_NEEDS_ARROW();
  config_.instructions = true;
  config_.packing = DataConfig::Packing::none;
  config_.overflow = DataConfig::Overflow::truncate;
  config_.format = "auto";
  expect_same({"chats.parquet", "chats.arrow", "chats_stream.arrow"}, "chats.jsonl");
  config_.use = DataUse::preferences;
  expect_same({"pairs.parquet"}, "pairs.jsonl");
  expect_same({"labels.parquet"}, "labels.jsonl");
}

TEST_F(TableRows, NumbersOfCsvAreThoseOfTheirColumns) {
  config_.instructions = true;
  config_.packing = DataConfig::Packing::none;
  config_.overflow = DataConfig::Overflow::truncate;
  config_.format = "auto";
  config_.use = DataUse::preferences;
  expect_same({"pairs.csv"}, "pairs.jsonl");
  expect_same({"labels.tsv"}, "labels.jsonl");
  config_.columns = {"margin:gap"};
  config_.train = {folder_.file("a.csv", "prompt,chosen,rejected,gap\n1,2,3,0.25\n4,5,6,-1e2\n")};
  EXPECT_EQ(content(folder_ / "a.csv").values, (std::vector<float>{0.25F, 0.25F, -100, -100}));
}

TEST_F(TableRows, EveryTypeIsReadAsPyarrowReadsIt) {
  LLMTRAIN_NEEDS_ARROW();
  config_.text_column = "large";
  for (const std::string name : {"types.parquet", "types.arrow"}) {
    InputFile file;
    file.path = folder + name;
    file.kind = InputKind::text_rows;
    file.table = name.ends_with("arrow") ? TableKind::arrow : TableKind::parquet;
    std::vector<ordered_json> found;
    DocumentReader reader(file, int64_t{1} << 30);
    for (DocumentSegment row; reader.next(row);) found.push_back(ordered_json::parse(row.text));
    EXPECT_EQ(found, rows(folder + "types.jsonl")) << name;
  }
  EXPECT_EQ(rows(folder + "text_snappy.parquet"), rows(folder + "text.jsonl"));
  EXPECT_EQ(rows(folder + "text_stream.arrow"), rows(folder + "text.jsonl"));
  EXPECT_EQ(rows(folder + "chats.parquet", {"messages", "source"}), rows(folder + "chats.jsonl"));
  EXPECT_EQ(rows(folder + "chats_stream.arrow", {"messages", "source"}), rows(folder + "chats.jsonl"));
  EXPECT_EQ(rows(folder + "fields_tabs.tsv"), rows(folder + "fields.jsonl"));
}

/// The photos of chats.* are no texts: who reads them sees it.
TEST_F(TableRows, ColumnsThatAreNotUsedAreNotRead) {
  LLMTRAIN_NEEDS_ARROW();
  for (const std::string name : {"chats.parquet", "chats.arrow"}) {
    EXPECT_THAT(refusal([&] { rows(folder + name); }),
                AllOf(HasSubstr(name + ": r"), HasSubstr("1 of 2: column 'photo': its bytes are not a text")));
    EXPECT_EQ(rows(folder + name, {"source"})[2].dump(), R"({"source":"b"})");
    TextFormat format;
    format.row_format = "auto";
    const InputFile file = find_input_files({folder + name}, format).front();
    EXPECT_EQ(file.format.row_format, "messages");
    EXPECT_THAT(file.columns.read, Contains("messages"));
    EXPECT_THAT(file.columns.read, Not(Contains("photo")));
    EXPECT_THAT(file.columns.read, Not(Contains("source")));
  }
  EXPECT_THAT(find_input_files({folder + "text_zstd.feather"}, {}).front().columns.read, testing::ElementsAre("text"));
}

TEST_F(TableRows, PlacesOfRows) {
  EXPECT_EQ(place_of_line(folder + "fields_commas.csv", 3), folder + "fields_commas.csv:4");
  EXPECT_EQ(place_of_line(folder + "fields_commas.csv", 4), folder + "fields_commas.csv:8") << "line ends in quotes";
  EXPECT_EQ(place_of_line(folder + "text.jsonl", 4), folder + "text.jsonl:4");
  config_.text_column = "id";
  config_.train = {folder_.file("a.csv", "id,label,text\n1,2,x\n")};
  EXPECT_EQ(refused(), "nothing was thrown");
  config_.text_column = "label";
  EXPECT_THAT(refused(), AllOf(StartsWith("65 "), HasSubstr("a.csv:2: 'label' must be a text")));
  config_.text_column = "txt";
  EXPECT_THAT(refused(), HasSubstr("a.csv:2: no column 'txt'"));
  EXPECT_THAT(refused(), HasSubstr("(there are: 'id', 'label', 'text')"));
  LLMTRAIN_NEEDS_ARROW();
  EXPECT_EQ(place_of_line(folder + "text_snappy.parquet", 6), folder + "text_snappy.parquet:6 (row group 2 of 3)");
  EXPECT_EQ(place_of_line(folder + "text_file.arrow", 12), folder + "text_file.arrow:12 (record batch 3)");
  config_.train = {folder + "text_snappy.parquet"};
  config_.text_column = "id";
  EXPECT_THAT(refused(), HasSubstr("text_snappy.parquet:1 (row group 1 of 3): 'id' must be a text"));
}

TEST_F(TableRows, TheCacheHasTheRowsByContentAndColumns) {
  LLMTRAIN_NEEDS_ARROW();
  const auto count = [&] {
    return std::ranges::count_if(std::filesystem::directory_iterator(config_.cache), [](const auto& entry) {
      return entry.path().filename().string().starts_with("unpacked-") && entry.path().extension() == ".txt";
    });
  };
  const auto unpacked = [&] {
    return std::ranges::any_of(reports_, [](const std::string& line) { return line.starts_with("unpacking"); });
  };
  content(folder + "text_snappy.parquet");
  EXPECT_TRUE(unpacked());
  const std::string copy = folder_.file("copy.parquet", content_of(folder + "text_snappy.parquet"));
  reports_.clear();
  content(copy);
  EXPECT_FALSE(unpacked());
  EXPECT_EQ(count(), 1);
  config_.text_column = "id";
  EXPECT_THAT(refusal([&] { content(copy); }), HasSubstr("'id' must be a text"));
  EXPECT_EQ(count(), 2);
  config_.text_column = "text";
  config_.cache = folder_ / "other";
  config_.unpacked_limit = 100;
  EXPECT_THAT(refusal([&] { content(copy); }), HasSubstr("copy.parquet: its rows are "));
}

}  // namespace
}  // namespace llmtrain
