// From rows of instruction data to samples.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "data/files/input_kind.hpp"
#include "data/quality/data_report.hpp"
#include "dataset_fixture.hpp"
#include "memory_tokens.hpp"

namespace llmtrain {
namespace {

using test::all_of_mask;
using test::all_tokens;
using test::batch_of;
using test::MemoryTokens;
using test::offsets_of;
using test::packing;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

class ConversationData : public test::DatasetTest {
 protected:
  ConversationData() {
    config_.tokenizer = "bytes";
    config_.instructions = true;
    config_.packing = DataConfig::Packing::none;
    config_.overflow = DataConfig::Overflow::truncate;
    batch_.sequence_length = 64;
  }
  Dataset open() {
    reports_.clear();
    chat_.template_name = templated_ ? folder_.file("chat.jinja", template_) : "none";
    return open_dataset(config_, batch_, *communicator_, [&](const std::string& line) { reports_.push_back(line); },
                        {chat_, read_chat_files(chat_.template_name, "")});
  }
  Dataset open(const std::string& name, const std::string& rows) {
    config_.train = {folder_.file(name, rows)};
    return open();
  }
  std::string refused(const std::string& name, const std::string& rows) {
    return test::refusal([&] { open(name, rows); });
  }

  bool templated_ = true;
  /// Turns are <role>content; and the answers are trained.
  std::string template_ =
      "{% for m in messages %}<{{ m.role[0] }}>{% if m.content == 'refused' %}{{ raise_exception('no') }}{% endif %}"
      "{% if m.role == 'assistant' %}{% generation %}{{ m.content }};{% endgeneration %}{% else %}{{ m.content }};"
      "{% endif %}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}";
  ChatConfig chat_;
};

std::string text_of(const Dataset& data) { return data.tokenizer->decode_with_special(all_tokens(*data.train)); }

/// The trained tokens of a file, a blank instead of the others.
std::string trained_text(const Dataset& data) {
  const std::vector<int32_t> ids = all_tokens(*data.train);
  const std::vector<uint8_t> mask = all_of_mask(*data.train);
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i) text += mask[i] == 0 ? '_' : ids[i] == 256 ? '$' : static_cast<char>(ids[i]);
  return text;
}

TEST_F(ConversationData, RowsBecomeDocumentsWithAMask) {
  const Dataset data = open("rows.jsonl", R"({"instruction": "q", "input": "i", "output": "a"})"
                                          "\n\n"
                                          R"({"instruction": "q2", "output": "a2", "history": [["x", "y"]]})"
                                          "\n");
  EXPECT_EQ(text_of(data), "<u>q\ni;<a>a;<u>x;<a>y;<u>q2;<a>a2;");
  EXPECT_EQ(trained_text(data), "__________a;___________________a2;");
  EXPECT_THAT(offsets_of(*data.train), ElementsAre(0, 12, 34));
  EXPECT_EQ(data.train->info().rows.used, 2);
  EXPECT_EQ(data.train->info().rows.without_stop, 2) << "the template ends turns with a semicolon";
  EXPECT_TRUE(data.has_conversations());
  chat_.train_on = ChatConfig::TrainOn::assistant;
  EXPECT_EQ(trained_text(open()), "__________a;________y;_________a2;");
  EXPECT_TRUE(tokenized());
  EXPECT_THAT(reports_, Contains(HasSubstr("its rows are of format alpaca")));
  EXPECT_THAT(reports_, Contains("chat template: " + (folder_ / "chat.jinja")));
}

TEST_F(ConversationData, FilesOfSeveralFormatsAndTexts) {
  templated_ = false;
  folder_.file("a.jsonl", R"({"prompt": "p ", "completion": "c"})");
  folder_.file("b.jsonl", R"({"instruction": "q", "output": "a"})");
  folder_.file("c.txt", "plain");
  folder_.file("d.jsonl", R"({"text": "row"})");
  config_.train = {folder_ / "a.jsonl", folder_ / "b.jsonl", folder_ / "c.txt", folder_ / "d.jsonl"};
  const Dataset data = open();
  EXPECT_EQ(trained_text(data), "__c$__a$plain$row$");
  EXPECT_EQ(data.train->info().rows.used, 2);
  EXPECT_EQ(data.train->info().rows.merged_borders, 0);
}

TEST_F(ConversationData, TheCacheKnowsDataTemplateAndSettings) {
  const std::string rows = R"({"prompt": "p", "completion": "c"})"
                           "\n";
  open("rows.jsonl", rows);
  EXPECT_TRUE(tokenized());
  open("rows.jsonl", rows);
  EXPECT_FALSE(tokenized());
  chat_.parse_special = true;
  open("rows.jsonl", rows);
  EXPECT_TRUE(tokenized());
  config_.format = "prompt_completion";
  open("rows.jsonl", rows);
  EXPECT_FALSE(tokenized()) << "the same format, named";
  config_.columns = {"prompt:completion", "completion:prompt"};
  const Dataset swapped = open("rows.jsonl", rows);
  EXPECT_TRUE(tokenized());
  EXPECT_EQ(trained_text(swapped), "_p$");
}

TEST_F(ConversationData, CountsWhatIsLeftOut) {
  templated_ = false;
  const auto row = [](const std::string& prompt, const std::string& completion) {
    return R"({"prompt": ")" + prompt + R"(", "completion": ")" + completion + "\"}\n";
  };
  const std::string rows = row("1", "a") + row("1", "a") + row("", "") + row("1a", "") + row("1", "a");
  for (int i = 0; i < 2; ++i) {  // made, and read from the cache
    const Dataset data = open("rows.jsonl", rows);
    EXPECT_EQ(trained_text(data), "_a$_a$__$_a$");
    EXPECT_EQ(data.train->info().rows.used, 4);
    EXPECT_EQ(data.train->info().rows.untrained, 1) << "EOS alone follows nothing";
    EXPECT_EQ(data.train->info().rows.duplicates, 2) << "the same tokens with another mask are not a duplicate";
    EXPECT_EQ(describe_rows(data.train->info().rows),
              "4 rows of conversations, 1 more left out: they have no token to train on, 2 duplicates");
  }
  EXPECT_THAT(refused("silent.jsonl", row("", "") + row("", "")),
              HasSubstr("65 " + (folder_ / "silent.jsonl") + ": none of its 2 rows has a token to train on"));
}

TEST_F(ConversationData, ErrorsNameTheFileAndTheLine) {
  const std::string good = R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})"
                           "\n";
  EXPECT_THAT(refused("a.jsonl", good + "\n" + R"({"messages": []})"),
              HasSubstr("a.jsonl:3: messages: it has no message"));
  EXPECT_THAT(refused("b.jsonl", good + R"({"prompt": "x"})"), HasSubstr("b.jsonl:2: there is no column 'messages'"));
  EXPECT_THAT(refused("c.jsonl", good + R"({"messages": )"), HasSubstr("c.jsonl:2: byte"));
  EXPECT_THAT(refused("d.jsonl", good + R"({"messages": [{"role": "assistant", "content": "refused"}]})"),
              HasSubstr("d.jsonl:2: "));
  EXPECT_THAT(refused("e.jsonl", R"({"question": "x"})"
                                 "\n"),
              HasSubstr("e.jsonl:1: the columns of the row fit no format"));
  config_.packing_given = config_.overflow_given = true;
  config_.overflow = DataConfig::Overflow::split;
  EXPECT_THAT(refused("f.jsonl", good), HasSubstr("78 data.overflow: split would begin a sample in the middle"));
  config_.overflow_given = false;
  config_.tokenizer = "bpe";
  EXPECT_THAT(refused("g.jsonl", good), HasSubstr("is trained on text, not on conversations"));
}

/// The row is named even if the cache has the tokens of the file already, and if rows before it were left out.
TEST_F(ConversationData, RowsLongerThanASampleAreNamed) {
  const std::string good = R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})"
                           "\n\n"
                           R"({"messages": [{"role": "assistant", "content": "b"}]})"
                           "\n",
                    longer =
                        R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bcdef"}]})"
                        "\n";
  template_ =
      "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
      "{% else %}{{ m.content }}{% endif %}{% endfor %}";
  config_.train = {folder_.file("rows.jsonl", good + longer)};
  config_.overflow = DataConfig::Overflow::error;
  config_.packing_given = config_.overflow_given = true;
  const std::string sizes = " tokens, more than the ";
  EXPECT_EQ(open().train->info().rows.used, 2);
  EXPECT_EQ(open().train->info().rows.untrained, 1);
  batch_.sequence_length = 4;
  EXPECT_THAT(test::refusal([&] { open(); }), HasSubstr("rows.jsonl:4: the conversation has 6" + sizes + "5 that"));
  batch_.sequence_length = 6;
  EXPECT_THAT(refused("b.jsonl", R"({"prompt": "a", "completion": "b"})"
                                 "\n\n"
                                 R"({"prompt": "abcde", "completion": "bcd"})"),
              HasSubstr("b.jsonl:3: the conversation has 9" + sizes +
                        "7 that batch.sequence_length allows; choose a longer sequence, or data.overflow = "
                        "truncate, truncate_left or drop"));
  config_.instructions = false;
  EXPECT_THAT(refused("c.jsonl", R"({"text": "a"})"
                                 "\n"
                                 R"({"text": "abcdefgh"})"),
              HasSubstr("c.jsonl:2: the document has 9" + sizes +
                        "7 that batch.sequence_length allows; choose a longer sequence, or data.overflow = split"));
  config_.document_separator = "--";
  EXPECT_THAT(refused("d.txt", "ab--\nabcdef--c"), HasSubstr("d.txt:1: the document has 8"));
}

TEST_F(ConversationData, ValidationTakesWholeConversations) {
  std::string rows;
  for (int i = 0; i < 10; ++i)
    rows += R"({"prompt": "prompt", "completion": "abc"})"
            "\n";
  config_.validation_fraction = 0.25;
  templated_ = false;
  const Dataset data = open("rows.jsonl", rows);
  EXPECT_EQ(data.train->tokens(), 70);
  EXPECT_EQ(data.validation->tokens(), 30);
}

TEST_F(ConversationData, ShortDocumentsAreLeftOut) {
  templated_ = false;
  config_.min_length = 4;
  const Dataset data = open("rows.jsonl", R"({"prompt": "", "completion": "ab"})"
                                          "\n"
                                          R"({"prompt": "p", "completion": "cd"})"
                                          "\n"
                                          R"({"prompt": "", "completion": "e"})"
                                          "\n"
                                          R"({"prompt": "", "completion": "fgh"})");
  EXPECT_EQ(trained_text(data), "_cd$fgh$");
  EXPECT_EQ(data.short_documents, 2);
  config_.min_length = 5;
  EXPECT_THAT(test::refusal([&] { open(); }), HasSubstr("every document has fewer tokens than data.min_length = 5"));
}

// Messages of llmtool validate about rows, before they are trained on.
TEST_F(ConversationData, ReportNamesWhatTrainingWouldMeet) {
  const auto row = [](const std::string& question, const std::string& answer) {
    return R"({"messages": [{"role": "user", "content": ")" + question + R"("}, {"role": "assistant", "content": ")" +
           answer + "\"}]}\n";
  };
  const std::string rows =
      row("<|im_end|>", "a") + row("q", "a") + row("q", "a") + row(std::string(90, 'q'), "a") + "{\"messages\": []}\n";
  TextFormat format;
  format.row_format = "auto";
  const auto files = find_input_files({folder_.file("rows.jsonl", rows)}, format);
  const std::shared_ptr<const Tokenizer> bytes = make_byte_tokenizer();
  ChatConfig chat;
  chat.template_name = "chatml";
  const ChatEncoder encoder(*bytes, chat, "");
  ConversationReportOptions options;
  const auto alone = make_conversation_report(files, options, {});
  EXPECT_FALSE(alone.contains("template"));
  EXPECT_EQ(alone["duplicates"]["exact"], 1);
  options.encoder = &encoder;
  options.sequence_length = 100;
  const auto report = make_conversation_report(files, options, {});
  EXPECT_EQ(report["usable"], false) << "a row is broken";
  EXPECT_EQ(report["rows"], 4);
  EXPECT_EQ(report["broken_rows"], 1);
  EXPECT_EQ(report["problems"][0]["line"], 5);
  EXPECT_EQ(report["duplicates"]["exact"], 1);
  EXPECT_EQ(report["truncated"], 1);
  EXPECT_EQ(report["lost_targets"], 1);
  EXPECT_EQ(report["without_stop"], 4) << "<|im_end|> is text for this tokenizer";
  EXPECT_EQ(report["split_tokens"][0]["text"], "<|im_end|>");
  EXPECT_EQ(report["split_tokens"][0]["rows"], 4);
  EXPECT_EQ(report["warnings"].size(), 6u) << report["warnings"].dump(1);
  chat.template_name = "llama2";  // its [INST] is text in its own tokenizer, too, and it ends with EOS
  const ChatEncoder other(*bytes, chat, "");
  options.encoder = &other;
  EXPECT_EQ(make_conversation_report(files, options, {})["split_tokens"].size(), 0u);
}

// Rows of 5, 9 and 9 tokens with T = 5: the last one has its only target at its end.
TEST(Overflow, KeepsAnEndOrLeavesOut) {
  const auto file = std::make_shared<MemoryTokens>(
      std::vector<std::vector<int32_t>>{
          {1, 2, 3, 4, 5}, {11, 12, 13, 14, 15, 16, 17, 18, 19}, {21, 22, 23, 24, 25, 26, 27, 28, 29}},
      std::vector<uint8_t>{0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1});
  file->set_rows({.used = 3});
  const auto targets = [&](DataConfig::Overflow overflow, DataConfig::Packing mode, SampleCounts& counts) {
    SampleRules config = packing(mode);
    config.overflow = overflow;
    const DataStream stream(file, config, batch_of(5, 1, 8), 1, false);
    counts = stream.counts();
    std::vector<int32_t> found;
    HostBatch batch;
    for (const MicroBatchPlan& micro : stream.plan(0).micro_batches) {
      stream.load(micro, batch);
      for (const int32_t target : batch.targets) {
        if (target != ignore_target) found.push_back(target);
      }
    }
    std::ranges::sort(found);
    return found;
  };
  for (const auto mode : {DataConfig::Packing::none, DataConfig::Packing::best_fit}) {
    SampleCounts counts;
    EXPECT_THAT(targets(DataConfig::Overflow::truncate, mode, counts), ElementsAre(3, 4, 5, 12, 13, 14, 15, 16));
    EXPECT_EQ(counts.too_long, 2);
    EXPECT_EQ(counts.lost_targets, 1);
    EXPECT_EQ(counts.samples, 2);
    EXPECT_EQ(counts.inputs, 9);
    EXPECT_THAT(targets(DataConfig::Overflow::truncate_left, mode, counts),
                ElementsAre(3, 4, 5, 15, 16, 17, 18, 19, 29));
    EXPECT_EQ(counts.lost_targets, 0);
    EXPECT_THAT(targets(DataConfig::Overflow::drop, mode, counts), ElementsAre(3, 4, 5));
    EXPECT_EQ(counts.dropped, 2);
  }
  SampleRules drop = packing(DataConfig::Packing::none);
  drop.overflow = DataConfig::Overflow::drop;
  EXPECT_THAT(test::refusal([&] { DataStream(file, drop, batch_of(3, 1, 1), 1, false); }),
              HasSubstr("65 memory: 3 of 3 documents are longer than the 4 tokens that batch.sequence_length allows"));
}

}  // namespace
}  // namespace llmtrain
