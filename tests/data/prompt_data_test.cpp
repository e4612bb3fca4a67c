// Prompts: from rows to tokens without an answer, their samples, and the other columns of the rows, through the token
// file, its views and the cache.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "core/files/file_handle.hpp"
#include "data/formats/encode_documents.hpp"
#include "data/tokenize/open_tokenizer.hpp"
#include "dataset_fixture.hpp"
#include "memory_tokens.hpp"
#include "text/chat/chat_encoder.hpp"

namespace llmtrain {
namespace {

using test::batch_of;
using test::refusal;
using testing::AllOf;
using testing::HasSubstr;

RowDocuments read(const std::string& row) { return RowReader("prompt", {}, true).read_documents(row); }
std::string refused(const std::string& row) {
  return refusal([&] { read(row); });
}

TEST(PromptRows, KeepTheOtherColumns) {
  const RowDocuments text =
      read(R"({"id": 3, "prompt": "p", "answer": "\u00e9", "system": "s", "more": {"a": [1.5]}})");
  EXPECT_EQ(std::get<PromptCompletion>(text.documents.at(0)).prompt, "p");
  EXPECT_EQ(text.columns, "{\"id\":3,\"answer\":\"\xc3\xa9\",\"more\":{\"a\":[1.5]}}");
  const RowDocuments chat = read(R"({"messages": [{"role": "user", "content": "u"}], "system": "s"})");
  EXPECT_EQ(std::get<Conversation>(chat.documents.at(0)).messages.size(), 2U) << "with the system's";
  EXPECT_EQ(chat.columns, "{}");
  const ColumnNames names = parse_columns({"prompt:question"}, "prompt");
  EXPECT_EQ(names.size(), 1U);
  EXPECT_EQ(RowReader("prompt", {"prompt:question"}, true).read_documents(R"({"question": "q", "prompt": 1})").columns,
            R"({"prompt":1})");
}

TEST(PromptRows, TheLastAnswerOfMessagesIsLeftOut) {
  const RowDocuments row =
      read(R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"},
      {"role": "user", "content": "v"}, {"role": "assistant", "content": "b"}]})");
  const auto& messages = std::get<Conversation>(row.documents.at(0)).messages;
  ASSERT_EQ(messages.size(), 3U);
  EXPECT_EQ(messages[2]["content"], "v");
}

TEST(PromptRows, Refusals) {
  EXPECT_THAT(refused(R"({"question": "q"})"), HasSubstr("65 there is no column 'prompt'"));
  EXPECT_THAT(refused(R"({"prompt": 3})"), HasSubstr("a text or a list of messages"));
  EXPECT_THAT(refused(R"({"prompt": []})"), HasSubstr("it has no message"));
  EXPECT_THAT(refused(R"({"messages": [{"role": "assistant", "content": "a"}]})"), HasSubstr("there is no prompt"));
  EXPECT_THAT(refused(R"({"prompt": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]})"),
              HasSubstr("ends with a turn of the assistant"));
}

TEST(PromptRows, AreRenderedUpToTheAnswer) {
  const std::shared_ptr<const Tokenizer> tokenizer = make_byte_tokenizer();
  ChatConfig config;
  config.template_name = "chatml";
  const ChatEncoder encoder(*tokenizer, config, "");
  std::vector<EncodedRow> encoded;
  encode_documents(encoder, read(R"({"prompt": [{"role": "user", "content": "u"}]})"), encoded);
  EXPECT_EQ(tokenizer->decode(encoded.at(0).ids), "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(encoded[0].trained, 0);
  EXPECT_EQ(encoded[0].mask, std::vector<uint8_t>(encoded[0].ids.size(), 0));
  encode_documents(encoder, read(R"({"prompt": "plain"})"), encoded);
  EXPECT_EQ(tokenizer->decode(encoded[0].ids), "plain") << "texts are not rendered, and there is no EOS";
}

class PromptData : public test::DatasetTest {
 protected:
  PromptData() {
    config_.tokenizer = "bytes";
    config_.instructions = true;
    config_.use = DataUse::prompts;
    config_.packing = DataConfig::Packing::none;
    config_.overflow = DataConfig::Overflow::truncate_left;
    config_.completion_tokens = 4;
    batch_ = batch_of(12, 1, 2);
  }
  Dataset open(const std::string& name, const std::string& rows) {
    config_.train = {folder_.file(name, rows)};
    reports_.clear();
    return open_dataset(config_, batch_, *communicator_, [&](const std::string& line) { reports_.push_back(line); },
                        {});
  }
  DataStream stream(const Dataset& data, bool shuffle = false) const {
    return {data.sources, config_, batch_, 1, shuffle};
  }
};

std::string text_of(const DataStream& stream, int64_t sample) {
  std::vector<int32_t> ids;
  stream.read_prompt(sample, ids);
  return {ids.begin(), ids.end()};
}

constexpr const char* three_rows =
    "{\"prompt\": \"one\", \"answer\": 1}\n{\"prompt\": \"a longer one\", \"answer\": \"two\"}\n"
    "{\"prompt\": \"three\", \"answer\": 3}\n";

TEST_F(PromptData, EachSampleIsAPromptWithItsRow) {
  for (int i = 0; i < 2; ++i) {  // made, and read from the cache
    const Dataset data = open("rows.jsonl", three_rows);
    EXPECT_EQ(tokenized(), i == 0);
    EXPECT_TRUE(data.train->info().has_prompts());
    EXPECT_FALSE(data.train->info().has_mask);
    EXPECT_THAT(describe_rows(*data.train), HasSubstr("3 prompts; tokens: 3 shortest, 6.7 mean, 12 longest"));
    const DataStream prompts = stream(data);
    EXPECT_EQ(prompts.samples(), 3);
    EXPECT_EQ(prompts.counts().too_long, 1);
    EXPECT_EQ(text_of(prompts, 0), "one");
    EXPECT_EQ(text_of(prompts, 1), "nger one") << "the last 8 of 12 - 4";
    EXPECT_EQ(prompts.row(1).columns, R"({"answer":"two"})");
    EXPECT_EQ(prompts.row(2).columns, R"({"answer":3})");
    EXPECT_EQ(prompts.row(2).name, "rows.jsonl");
    EXPECT_EQ(prompts.row(2).offset, static_cast<int64_t>(std::string_view(three_rows).find("{\"prompt\": \"three\"")));
    const StepPlan step = stream(data, true).plan(0);
    EXPECT_EQ(step.samples.size(), 2U);
    EXPECT_EQ(step.trained_tokens, 2) << "prompts";
  }
}

TEST_F(PromptData, LongPromptsAreCutOrLeftOut) {
  config_.overflow = DataConfig::Overflow::drop;
  const Dataset data = open("rows.jsonl", three_rows);
  const DataStream prompts = stream(data);
  EXPECT_EQ(prompts.samples(), 2);
  EXPECT_EQ(prompts.counts().dropped, 1);
  EXPECT_EQ(text_of(prompts, 1), "three");
  EXPECT_EQ(prompts.row(1).columns, R"({"answer":3})");
  config_.overflow = DataConfig::Overflow::error;
  config_.overflow_given = true;
  EXPECT_THAT(refusal([&] { open("rows.jsonl", three_rows); }),
              AllOf(HasSubstr("rows.jsonl:2"), HasSubstr("12 tokens, more than the 8")));
}

TEST_F(PromptData, ViewsHaveTheRowsOfTheirDocuments) {
  const Dataset first = open("rows.jsonl", three_rows);
  const Dataset second = open("more.jsonl", "{\"prompt\": \"four\", \"n\": 4}\n");
  const auto all = concatenate_tokens({first.train, second.train});
  EXPECT_EQ(StoredRow::parse(all->row_text(0)).columns, R"({"answer":1})");
  EXPECT_EQ(StoredRow::parse(all->row_text(2)).columns, R"({"answer":3})");
  EXPECT_EQ(StoredRow::parse(all->row_text(3)).columns, R"({"n":4})");
  const auto longer = without_short_documents(all, 4);
  EXPECT_EQ(longer->info().documents, 3);
  EXPECT_EQ(StoredRow::parse(longer->row_text(0)).columns, R"({"answer":"two"})");
  EXPECT_EQ(StoredRow::parse(longer->row_text(2)).columns, R"({"n":4})");
  const SplitTokens split = split_tokens(all, 0.3);
  ASSERT_NE(split.validation, nullptr);
  const int64_t before = split.train->info().documents;
  EXPECT_EQ(before + split.validation->info().documents, 4) << "no prompt is cut";
  EXPECT_EQ(StoredRow::parse(split.validation->row_text(3 - before)).columns, R"({"n":4})");
  std::string changed = three_rows;
  changed.replace(changed.find("two"), 3, "TWO");
  EXPECT_NE(content_of_tokens(*first.train), content_of_tokens(*open("rows.jsonl", changed).train));
}

TEST_F(PromptData, OtherRowsAreRefusedWithTheirLine) {
  const auto refused_file = [&](const std::string& name, const std::string& rows) {
    return refusal([&] { open(name, rows); });
  };
  EXPECT_THAT(refused_file("a.jsonl", std::string(three_rows) + "{\"question\": \"q\"}\n"),
              AllOf(HasSubstr("a.jsonl:4"), HasSubstr("there is no column 'prompt'"), HasSubstr("question")));
  EXPECT_THAT(refused_file("b.jsonl", "{\"prompt\": \"\"}\n"), AllOf(HasSubstr("b.jsonl:1"), HasSubstr("is empty")));
  EXPECT_THAT(refused_file("c.txt", "a text"), AllOf(HasSubstr("c.txt"), HasSubstr("they are not prompts")));
  config_.format = "alpaca";
  EXPECT_THAT(refused_file("d.jsonl", R"({"instruction": "i", "output": "o"})"), HasSubstr("they are not prompts"));
  config_.format = "prompt";
  config_.use = DataUse::training;
  EXPECT_THAT(refused_file("e.jsonl", three_rows), HasSubstr("run.task = ppo and grpo are for"));
}

TEST_F(PromptData, DamagedRowsAreRefused) {
  const Dataset data = open("rows.jsonl", three_rows);
  const std::string path = data.train->info().path;
  const std::string copy = folder_ / "damaged.h5";
  std::string bytes = FileHandle::open_to_read(path).read_text(1 << 20);
  std::array<uint64_t, 4> offsets{};
  for (size_t row = 0; row < 3; ++row) {
    offsets[row + 1] = offsets[row] + data.train->row_text(static_cast<int64_t>(row)).size();
  }
  const std::string_view stored(reinterpret_cast<const char*>(offsets.data()), sizeof(offsets));
  const size_t at = bytes.find(stored);
  ASSERT_NE(at, std::string::npos);
  for (const uint64_t wrong : {offsets[2], uint64_t{11'000'000'000}, uint64_t{0}}) {
    std::string damaged = bytes;
    damaged.replace(at + 8, 8, reinterpret_cast<const char*>(&wrong), 8);
    folder_.file("damaged.h5", damaged);
    EXPECT_THAT(refusal([&] { open_token_file(copy); }),
                HasSubstr("/row_offsets must ascend from 0 to " + std::to_string(offsets[3])));
  }
  folder_.file("damaged.h5", bytes);
  EXPECT_EQ(open_token_file(copy)->row_text(0), data.train->row_text(0)) << "the control";
}

}  // namespace
}  // namespace llmtrain
