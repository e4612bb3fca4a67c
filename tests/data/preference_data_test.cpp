// Preference data: from rows of pairs to documents, samples and the columns of a batch, against TRL 1.16
// (tests/reference/preference).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "data/files/data_sources.hpp"
#include "data/formats/encode_documents.hpp"
#include "data/quality/data_report.hpp"
#include "data/tokenize/open_tokenizer.hpp"
#include "dataset_fixture.hpp"
#include "memory_tokens.hpp"

namespace llmtrain {
namespace {

using Json = nlohmann::ordered_json;
using test::all_of_mask;
using test::all_tokens;
using test::batch_of;
using test::content_of;
using test::offsets_of;
using test::refusal;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string format_of(const std::string& row) {
  FormatRecognition recognition("auto", {});
  recognition.add(row);
  return recognition.format();
}

std::string refused_row(std::string_view format, const std::string& row) {
  return refusal([&] { RowReader(format, {}, true).read_documents(row); });
}

TEST(PreferenceRows, AreRecognisedByTheirColumns) {
  EXPECT_EQ(format_of(R"({"chosen": "a", "rejected": "b"})"), "preference");
  EXPECT_EQ(format_of(R"({"prompt": "p", "messages": [], "text": "t", "chosen": "a", "rejected": "b"})"), "preference");
  EXPECT_EQ(format_of(R"({"prompt": "p", "completion": "a", "label": true})"), "unpaired");
  EXPECT_EQ(format_of(R"({"prompt": "p", "completion": "a", "label": 0})"), "unpaired");
  EXPECT_EQ(format_of(R"({"prompt": "p", "completion": "a", "label": "science"})"), "prompt_completion");
  EXPECT_EQ(format_of(R"({"prompt": "p", "completion": "a", "label": 2})"), "prompt_completion");
  EXPECT_EQ(format_of(R"({"prompt": "p", "completion": "a", "label": null})"), "prompt_completion");
  EXPECT_EQ(format_of(R"({"prompt": "p", "completion": "a", "chosen": "a"})"), "prompt_completion");
}

TEST(PreferenceRows, HaveAValue) {
  const auto value = [](std::string_view format, const std::string& row) {
    return RowReader(format, {}, true).read_documents(row).value;
  };
  EXPECT_EQ(value("preference", R"({"chosen": "a", "rejected": "b", "margin": 1.5})"), 1.5F);
  EXPECT_EQ(value("preference", R"({"chosen": "a", "rejected": "b", "margin": null})"), 0);
  EXPECT_EQ(value("unpaired", R"({"prompt": "p", "completion": "c", "label": true})"), 1);
  EXPECT_EQ(value("unpaired", R"({"prompt": "p", "completion": "c", "label": 0.0})"), 0);
}

TEST(PreferenceRows, APromptOfTextBesideMessagesRepeatsThem) {
  const RowDocuments row =
      RowReader("preference", {}, true).read_documents(R"({"prompt": "Hi", "system": "s", "chosen": [
      {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "a"}], "rejected": [
      {"content": "Hi", "role": "user"}, {"role": "assistant", "content": "b"}]})");
  ASSERT_EQ(row.documents.size(), 2U);
  const auto& rejected = std::get<Conversation>(row.documents[1]);
  EXPECT_EQ(rejected.prompt_messages, 2);
  EXPECT_EQ(rejected.messages.size(), 3U);
  EXPECT_EQ(rejected.messages[0]["content"], "s");
  EXPECT_EQ(rejected.messages[2]["content"], "b");
}

TEST(PreferenceRows, Refusals) {
  const auto pair = [](const std::string& rest) { return refused_row("preference", "{" + rest + "}"); };
  const std::string turn = R"([{"role": "assistant", "content": "a"}])", user = R"([{"role": "user", "content": "a"}])";
  EXPECT_THAT(pair(R"("chosen": "a")"), HasSubstr("65 there is no column 'rejected'"));
  EXPECT_THAT(pair(R"("chosen": "a", "rejected": 3)"), HasSubstr("must be two texts or two lists of messages"));
  EXPECT_THAT(pair(R"("chosen": "a", "rejected": )" + turn), HasSubstr("two lists of messages"));
  EXPECT_THAT(pair(R"("chosen": "a", "rejected": "b", "prompt": [])"), HasSubstr("prompt"));
  EXPECT_THAT(pair(R"("chosen": )" + turn + R"(, "rejected": [])"), HasSubstr("it has no message"));
  EXPECT_THAT(pair(R"("chosen": )" + turn + R"(, "rejected": )" + user), HasSubstr("begin with different messages"));
  EXPECT_THAT(pair(R"("prompt": )" + user + R"(, "chosen": )" + turn + R"(, "rejected": )" + user),
              HasSubstr("no turn of the assistant"));
  EXPECT_THAT(pair(R"("chosen": "a", "rejected": "b", "margin": "much")"), HasSubstr("margin"));
  EXPECT_THAT(pair(R"("chosen": "a", "rejected": "b", "margin": 1e300)"), HasSubstr("margin: is too large"));
  const auto label = [](const std::string& text) {
    return refused_row("unpaired", R"({"prompt": "p", "completion": "c", "label": )" + text + "}");
  };
  for (const char* text : {"2", "0.5", "\"yes\"", "null", "[]"}) {
    EXPECT_THAT(label(text), HasSubstr("label: must be true or false, or 1 or 0")) << text;
  }
}

std::vector<uint8_t> mask_of(size_t prompt, size_t answer) {
  std::vector<uint8_t> mask(prompt + answer, 1);
  std::fill_n(mask.begin(), prompt, uint8_t{0});
  return mask;
}

TEST(PreferenceRows, HaveTheTokensOfTrl) {
  const Json goldens = Json::parse(content_of("tests/reference/preference/tokens.json"));
  const char* data = std::getenv("LLMTRAIN_DATA");
  int compared = 0, of_hh = 0, joined = 0, separate = 0;
  std::map<std::string, std::unique_ptr<Tokenizer>> tokenizers;
  for (const Json& entry : goldens["cases"]) {
    const std::string name = entry["tokenizer"];
    const bool small = name == "small";
    if (!small && data == nullptr) continue;
    const std::string folder = small ? "tests/reference/sft/model" : std::string(data) + "/tokenizer/" + name;
    std::unique_ptr<Tokenizer>& tokenizer = tokenizers[name];
    if (tokenizer == nullptr) tokenizer = open_tokenizer(folder);
    ChatConfig config;
    config.template_name = small ? "auto" : "none";
    const ChatEncoder encoder(*tokenizer, config, folder);
    std::string row;
    if (entry.contains("row")) row = entry["row"].dump();
    if (entry.contains("line")) {
      std::ifstream lines(std::string(data) + "/dpo/hh_helpful.jsonl");
      for (int n = entry["line"]; n > 0; --n) std::getline(lines, row);
      ++of_hh;
    }
    SCOPED_TRACE(name + " " + row.substr(0, 200));
    std::vector<EncodedRow> encoded;
    const RowDocuments documents = RowReader(format_of(row), {}, encoder.has_template()).read_documents(row);
    encode_documents(encoder, documents, encoded);
    ASSERT_EQ(encoded.size(), entry["answers"].size());
    const auto prompt = entry["prompt"].get<std::vector<int32_t>>();
    const auto* texts = std::get_if<PromptCompletion>(&documents.documents[0]);
    const bool no_prompt = texts != nullptr && texts->prompt.empty();  // then BOS is not a target either way
    for (size_t d = 0; d < encoded.size(); ++d, ++compared) {
      const auto answer = entry["answers"][d].get<std::vector<int32_t>>();
      std::vector<int32_t> ids = prompt;
      ids.insert(ids.end(), answer.begin(), answer.end());
      EXPECT_EQ(encoded[d].ids, ids);
      EXPECT_EQ(encoded[d].mask, mask_of(no_prompt ? 0 : prompt.size(), ids.size() - (no_prompt ? 0 : prompt.size())));
      EncodedRow alone;  // control: without the other answer some prompts end elsewhere
      encoder.encode(documents.documents[d], alone);
      (alone.mask == encoded[d].mask ? separate : joined) += 1;
    }
  }
  EXPECT_GE(compared, 40);
  EXPECT_GT(joined, 0);
  EXPECT_GT(separate, joined);
  EXPECT_EQ(of_hh, data != nullptr ? 6 : 0);
}

class PreferenceData : public test::DatasetTest {
 protected:
  PreferenceData() {
    config_.tokenizer = "bytes";
    config_.instructions = true;
    config_.use = DataUse::preferences;
    config_.packing = DataConfig::Packing::none;
    config_.overflow = DataConfig::Overflow::truncate;
    batch_ = batch_of(64, 1, 1);
  }
  Dataset open() {
    reports_.clear();
    return open_dataset(config_, batch_, *communicator_, [&](const std::string& line) { reports_.push_back(line); },
                        {});
  }
  Dataset open(const std::string& name, const std::string& rows) {
    config_.train = {folder_.file(name, rows)};
    return open();
  }
  std::string refused(const std::string& name, const std::string& rows) {
    return refusal([&] { open(name, rows); });
  }
  DataStream stream(const Dataset& data) const { return {data.sources, config_, batch_, 1, false}; }
};

std::string pair_row(const std::string& prompt, const std::string& chosen, const std::string& rejected,
                     const std::string& rest = {}) {
  return Json{{"prompt", prompt}, {"chosen", chosen}, {"rejected", rejected}}.dump().substr(1).insert(0, "{" + rest) +
         "\n";
}

/// The trained tokens of a file, a blank instead of the others.
std::string trained_text(const TokenFile& file) {
  const std::vector<int32_t> ids = all_tokens(file);
  const std::vector<uint8_t> mask = all_of_mask(file);
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i) text += mask[i] == 0 ? '_' : ids[i] == 256 ? '$' : static_cast<char>(ids[i]);
  return text;
}

TEST_F(PreferenceData, PairsBecomeTwoDocumentsAndSomeAreLeftOut) {
  const std::string rows = pair_row("p", "a", "bc") + pair_row("p", "x", "x") + pair_row("p", "", "x") +
                           pair_row("pq", "d", "e") + pair_row("p", "y", "") + pair_row("p", "z", "z");
  for (int i = 0; i < 2; ++i) {  // made, and read from the cache
    const Dataset data = open("rows.jsonl", rows);
    EXPECT_EQ(trained_text(*data.train), "_a$_bc$__d$__e$");
    EXPECT_THAT(offsets_of(*data.train), ElementsAre(0, 3, 7, 11, 15));
    const TokenFileInfo& info = data.train->info();
    EXPECT_EQ(info.group, 2);
    EXPECT_EQ(info.column, "");
    EXPECT_EQ(info.rows.used, 2);
    EXPECT_EQ(
        describe_rows(*data.train),
        "2 pairs, 2 more left out: both answers are equal (the first at rows.jsonl:2), 2 more left out: an answer "
        "is empty (the first at rows.jsonl:3); tokens of chosen: 3 shortest, 3.5 mean, 4 longest; of rejected: 4 "
        "shortest, 4.0 mean, 4 longest");
  }
  EXPECT_FALSE(tokenized());
  EXPECT_THAT(refused("none.jsonl", "\n" + pair_row("p", "x", "x") + pair_row("p", "", "x")),
              AllOf(HasSubstr("65 " + (folder_ / "none.jsonl") + ": none of its 2 rows can be trained on"),
                    HasSubstr("the first at none.jsonl:2"), HasSubstr("the first at none.jsonl:3")));
}

TEST_F(PreferenceData, MarginsAndLabelsAreColumns) {
  const Dataset data = open("rows.jsonl", pair_row("p", "a", "b") + pair_row("p", "c", "d", R"("margin": 0.5, )"));
  EXPECT_EQ(data.train->info().column, "margin");
  EXPECT_THAT(data.train->values(), ElementsAre(0, 0, 0.5, 0.5));
  batch_ = batch_of(64, 2, 2);
  const HostBatch batch = test::first_batch(stream(data));
  EXPECT_THAT(batch.documents.values, ElementsAre(0, 0, 0.5, 0.5));
  EXPECT_THAT(batch.documents.ids, ElementsAre(0, 1, 2, 3));
  const Dataset labels = open("labels.jsonl", R"({"prompt": "p", "completion": "ab", "label": true})"
                                              "\n"
                                              R"({"prompt": "p", "completion": "", "label": true})"
                                              "\n"
                                              R"({"prompt": "p", "completion": "c", "label": 0})");
  EXPECT_EQ(labels.train->info().group, 1);
  EXPECT_EQ(labels.train->info().column, "label");
  EXPECT_THAT(labels.train->values(), ElementsAre(1, 0));
  EXPECT_THAT(describe_rows(*labels.train), HasSubstr("2 rows with a label, 1 of them desirable, 1 more left out: an "
                                                      "answer is empty (the first at labels.jsonl:2); tokens: 3"));
  const HostBatch answers = test::first_batch(stream(labels));
  EXPECT_THAT(answers.documents.ids, ElementsAre(0, 1));
  EXPECT_THAT(answers.documents.targets, ElementsAre(3, 2));
  EXPECT_THAT(answers.documents.values, ElementsAre(1, 0));
}

TEST_F(PreferenceData, TasksTakeTheirOwnRows) {
  const std::string pair = pair_row("p", "a", "b");
  const std::string answer = R"({"prompt": "p", "completion": "c"})"
                             "\n";
  const std::string labelled = R"({"prompt": "p", "completion": "c", "label": true})"
                               "\n";
  EXPECT_THAT(refused("sft.jsonl", "\n" + answer),
              AllOf(HasSubstr("sft.jsonl:2: its rows are of format prompt_completion"), HasSubstr("run.task = sft")));
  EXPECT_THAT(refused("text.txt", "a text"), AllOf(HasSubstr("text.txt"), HasSubstr("chosen and rejected")));
  EXPECT_THAT(refused("ids.jsonl", R"({"input_ids": [1, 2]})"), HasSubstr("they have no preference"));
  EXPECT_THAT(refused("mixed.jsonl", pair + answer),
              HasSubstr("mixed.jsonl:2: the row is of format prompt_completion"));
  open("labelled.jsonl", labelled);
  config_.train = {folder_.file("pairs.jsonl", pair), folder_ / "labelled.jsonl"};
  EXPECT_THAT(refusal([&] { open(); }), AllOf(HasSubstr("pairs.jsonl has preference"), HasSubstr("has unpaired")));
  config_.use = DataUse::pairs;
  EXPECT_THAT(refused("labelled.jsonl", labelled),
              AllOf(HasSubstr("labelled.jsonl:1"), HasSubstr("a reward model needs rows")));
  config_.use = DataUse::training;
  EXPECT_THAT(refused("pairs.jsonl", pair), AllOf(HasSubstr("pairs.jsonl:1"), HasSubstr("dpo and reward are")));
  EXPECT_THAT(refused("labelled.jsonl", labelled), HasSubstr("dpo.loss = kto"));
  config_.format = "prompt_completion";
  EXPECT_FALSE(open("labelled.jsonl", labelled).train->info().has_groups());
}

std::shared_ptr<test::MemoryTokens> pairs_of(const std::vector<std::vector<int32_t>>& documents,
                                             std::vector<uint8_t> mask = {}) {
  auto file = std::make_shared<test::MemoryTokens>(documents, std::move(mask));
  file->set_preferences(2, "margin");
  file->set_rows({.used = 1});
  return file;
}

SampleRules rules_of(DataConfig::Overflow overflow, int64_t max_prompt = 0) {
  SampleRules config;
  config.packing = DataConfig::Packing::best_fit;  // has no meaning for pairs
  config.overflow = overflow;
  config.max_prompt_length = max_prompt;
  return config;
}

TEST(PreferenceStream, ASampleIsAPair) {
  const auto file = pairs_of({{1, 2, 3}, {1, 2, 4, 5}, {6, 7}, {6, 8}, {9, 10, 11, 12, 13}, {9, 10}},
                             {0, 0, 1, 0, 0, 1, 1, 0, 1, 0, 1, 0, 1, 1, 1, 1, 0, 1});
  const DataStream stream(file, rules_of(DataConfig::Overflow::truncate), batch_of(8, 2, 2), 1, false);
  EXPECT_EQ(stream.samples(), 3);
  EXPECT_EQ(stream.steps_per_epoch(), 2);
  EXPECT_EQ(stream.max_segments(), 2 * 2 + 16);  // and padding
  const StepPlan plan = stream.plan(0);
  ASSERT_EQ(plan.micro_batches.size(), 1U);
  EXPECT_EQ(plan.trained_tokens, 1 + 2 + 1 + 1);
  EXPECT_EQ(plan.micro_batches[0].rows, 128);
  HostBatch batch;
  stream.load(plan.micro_batches[0], batch);
  EXPECT_THAT(std::vector(batch.segments.begin(), batch.segments.begin() + 5), ElementsAre(0, 2, 5, 6, 7));
  EXPECT_THAT(std::vector(batch.ids.begin(), batch.ids.begin() + 7), ElementsAre(1, 2, 1, 2, 4, 6, 6));
  EXPECT_THAT(std::vector(batch.targets.begin(), batch.targets.begin() + 7), ElementsAre(-100, 3, -100, 4, 5, 7, 8));
  EXPECT_THAT(std::vector(batch.positions.begin(), batch.positions.begin() + 7), ElementsAre(0, 1, 0, 1, 2, 0, 0));
  EXPECT_THAT(std::vector(batch.sequence_ids.begin(), batch.sequence_ids.begin() + 7),
              ElementsAre(0, 0, 0, 0, 0, 1, 1));
  EXPECT_THAT(batch.documents.ids, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(batch.documents.targets, ElementsAre(1, 2, 1, 1));
  EXPECT_THAT(batch.documents.values, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(batch.documents.mean_first_targets, 1) << "one target of each chosen answer of this step";
  EXPECT_EQ(stream.plan(1).micro_batches[0].mean_first_targets, 4);
  stream.load(stream.plan(1).micro_batches[0], batch);
  EXPECT_THAT(batch.documents.ids, ElementsAre(4, 5)) << "those of the batch before are gone";
}

TEST(PreferenceStream, LongAnswersAndPrompts) {
  // Two pairs of a prompt of 4 tokens; the first has an answer of 3 tokens and one of 1.
  const std::vector<std::vector<int32_t>> documents = {
      {1, 2, 3, 4, 5, 6, 7}, {1, 2, 3, 4, 8}, {1, 2, 3, 4, 9}, {1, 2, 3, 4, 10}};
  const std::vector<uint8_t> mask = {0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
  const auto open = [&](int64_t length, const SampleRules& rules) {
    return DataStream(pairs_of(documents, mask), rules, batch_of(length, 1, 1), 1, false);
  };
  using Overflow = DataConfig::Overflow;
  const DataStream cut = open(4, rules_of(Overflow::truncate));
  EXPECT_EQ(cut.samples(), 2);
  EXPECT_EQ(cut.counts().too_long, 1);
  EXPECT_THAT(test::first_batch(cut).documents.targets, ElementsAre(1, 1));
  EXPECT_THAT(test::first_batch(open(4, rules_of(Overflow::truncate_left))).documents.targets, ElementsAre(3, 1));
  const DataStream dropped = open(4, rules_of(Overflow::drop));
  EXPECT_EQ(dropped.samples(), 1);
  EXPECT_EQ(dropped.counts().dropped, 1);
  EXPECT_THAT(test::first_batch(dropped).documents.values, ElementsAre(2, 3)) << "the second pair";
  EXPECT_THAT(refusal([&] { open(4, rules_of(Overflow::error)); }), HasSubstr("document 1: the conversation has 7"));
  // The limit of prompts applies before: tokens 3 and 4 remain of the prompts.
  const DataStream shorter = open(4, rules_of(Overflow::error, 2));
  EXPECT_EQ(shorter.counts().shorter_prompts, 4);
  EXPECT_EQ(shorter.counts().too_long, 0);
  const HostBatch batch = test::first_batch(shorter);
  EXPECT_THAT(std::vector(batch.ids.begin(), batch.ids.begin() + 6), ElementsAre(3, 4, 5, 6, 3, 4));
  EXPECT_THAT(batch.documents.targets, ElementsAre(3, 1));
  EXPECT_THAT(batch.documents.values, ElementsAre(0, 1)) << "of documents that begin later";
  EXPECT_THAT(test::first_batch(open(3, rules_of(Overflow::truncate, 2))).documents.targets, ElementsAre(2, 1));
}

// The last kept token of each document, whatever the mask.
TEST(PreferenceStream, ScoredDocumentsHaveInputsAlone) {
  const auto file = pairs_of({{1, 2, 3, 4, 5}, {1}, {6, 7}, {8, 9, 10}}, std::vector<uint8_t>(11, 0));
  const auto load = [&](DataConfig::Overflow overflow, int64_t length) {
    SampleRules rules = rules_of(overflow);
    rules.scores_documents = true;
    const DataStream stream(file, rules, batch_of(length, 2, 2), 1, false);
    HostBatch batch;
    stream.load(stream.plan(0).micro_batches[0], batch);
    std::vector<int32_t> scored;
    for (size_t i = 0; i < batch.ids.size(); ++i) {
      if (batch.loss_weights[i] == 1) scored.push_back(batch.ids[i]);
    }
    EXPECT_EQ(stream.plan(0).trained_tokens, std::ssize(scored));
    EXPECT_EQ(batch.documents.targets, std::vector<int64_t>(scored.size(), 1));
    EXPECT_EQ(std::ranges::count(batch.targets, ignore_target), std::ssize(batch.targets));
    return std::pair(scored, std::vector(batch.segments.begin() + 1, batch.segments.begin() + 3));
  };
  using testing::Pair;
  const auto truncate = DataConfig::Overflow::truncate;
  EXPECT_THAT(load(truncate, 5), Pair(ElementsAre(5, 1, 7, 10), ElementsAre(5, 6))) << "all tokens, the file's last";
  EXPECT_THAT(load(truncate, 3), Pair(ElementsAre(3, 1, 7, 10), ElementsAre(3, 4)));
  EXPECT_THAT(load(DataConfig::Overflow::truncate_left, 3), Pair(ElementsAre(5, 1, 7, 10), ElementsAre(3, 4)));
  EXPECT_THAT(load(DataConfig::Overflow::drop, 4), Pair(ElementsAre(7, 10), ElementsAre(2, 5)));
  EXPECT_THAT(refusal([&] { load(DataConfig::Overflow::error, 4); }), HasSubstr("has 5 tokens, more than the 4 that"));
}

TEST(PreferenceStream, APairWithoutATargetIsLeftOut) {
  const std::vector<std::vector<int32_t>> documents = {{1, 2, 3, 4}, {1, 5}, {1, 2}, {1, 3}};
  const auto file = pairs_of(documents, {0, 0, 0, 1, 0, 1, 0, 1, 0, 1});
  const DataStream stream(file, rules_of(DataConfig::Overflow::truncate), batch_of(2, 1, 1), 1, false);
  EXPECT_EQ(stream.samples(), 1);
  EXPECT_EQ(stream.counts().lost_targets, 1);
  EXPECT_EQ(stream.counts().inputs, 2);
  const auto none = pairs_of({{1, 2, 3, 4}, {1, 5}}, {0, 0, 0, 1, 0, 1});
  EXPECT_THAT(refusal([&] { DataStream(none, rules_of(DataConfig::Overflow::truncate), batch_of(2, 1, 1), 1, false); }),
              HasSubstr("1 of 1 pairs are longer"));
}

TEST(PreferenceStream, MicroBatchesByTokensHoldWholePairs) {
  std::vector<std::vector<int32_t>> documents;
  for (int pair = 0; pair < 6; ++pair) documents.insert(documents.end(), {{1, 2, 3, 4}, {1, 2, 3}});  // 5 inputs
  SampleRules rules = rules_of(DataConfig::Overflow::truncate);
  rules.max_tokens_per_batch = 12;
  rules.group_by_length = true;
  const DataStream stream(pairs_of(documents), rules, batch_of(8, 1, 6), 1, true);
  const StepPlan plan = stream.plan(0);
  ASSERT_EQ(plan.micro_batches.size(), 3U);
  for (const MicroBatchPlan& micro : plan.micro_batches) {
    EXPECT_EQ(micro.samples.size(), 2U);
    HostBatch batch;
    stream.load(micro, batch);
    EXPECT_EQ(batch.documents.ids[1], batch.documents.ids[0] + 1);
    EXPECT_EQ(batch.documents.ids[0], 2 * micro.samples[0]);
  }
  rules.max_tokens_per_batch = 4;
  EXPECT_THAT(refusal([&] { DataStream(pairs_of(documents), rules, batch_of(4, 1, 6), 1, true); }),
              HasSubstr("data.max_tokens_per_batch: 4 is less than the longest pair has: 5 tokens"));
}

TEST(PreferenceStream, ValidationIsSplitBetweenPairs) {
  const auto file = pairs_of({{1, 2}, {1, 3}, {1, 4}, {1, 5, 6, 7, 8}, {1, 9}, {1, 10}});
  for (const double fraction : {0.2, 0.3, 0.5, 0.7}) {
    const SplitTokens split = split_tokens(file, fraction);
    for (const auto& part : {split.train, split.validation}) {
      EXPECT_EQ(part->info().documents % 2, 0) << fraction;
      EXPECT_EQ(part->info().group, 2);
    }
    const size_t train = split.train->values().size();
    EXPECT_EQ(train + split.validation->values().size(), 6U);
    EXPECT_EQ(split.validation->values().front(), static_cast<float>(train)) << "its own values";
  }
}

TEST(PreferenceStream, ShortDocumentsLeaveWithTheirPair) {
  const auto file = pairs_of({{1, 2, 3}, {1, 3, 4}, {1, 4}, {1, 5, 6}, {1, 7, 8}, {1, 9, 10}});
  const auto rest = without_short_documents(file, 3);
  EXPECT_EQ(rest->info().documents, 4);
  EXPECT_EQ(all_tokens(*rest), (std::vector<int32_t>{1, 2, 3, 1, 3, 4, 1, 7, 8, 1, 9, 10}));
  EXPECT_THAT(rest->values(), ElementsAre(0, 1, 4, 5));
}

TEST(PreferenceStream, OnlyFilesOfOneKindAreJoined) {
  const auto pairs = pairs_of({{1, 2}, {1, 3}});
  const auto joined = concatenate_tokens({pairs, pairs});
  EXPECT_THAT(joined->values(), ElementsAre(0, 1, 0, 1));
  const auto plain = std::make_shared<test::MemoryTokens>(std::vector<std::vector<int32_t>>{{1, 2}});
  EXPECT_THAT(refusal([&] {
                concatenate_tokens({pairs, plain});
              }),
              HasSubstr("memory has pairs and memory has documents without a preference"));
  const auto without_margin = std::make_shared<test::MemoryTokens>(std::vector<std::vector<int32_t>>{{1, 2}, {1, 3}});
  without_margin->set_preferences(2, "");
  EXPECT_THAT(refusal([&] { concatenate_tokens({pairs, without_margin}); }), HasSubstr("one of them has margins"));
}

TEST(PreferenceStream, ContentsDependOnGroupAndValues) {
  const std::vector<std::vector<int32_t>> documents = {{1, 2}, {1, 3}};
  const auto plain = std::make_shared<test::MemoryTokens>(documents);
  const auto pairs = pairs_of(documents), labels = pairs_of(documents);
  labels->set_preferences(1, "label");
  EXPECT_NE(content_of_tokens(*plain), content_of_tokens(*pairs));
  EXPECT_NE(content_of_tokens(*labels), content_of_tokens(*pairs));
  EXPECT_EQ(content_of_tokens(*pairs_of(documents)), content_of_tokens(*pairs));
}

TEST(PreferenceStream, UploadsTheColumns) {
  Arena arena;
  BatchBuffers buffers;
  buffers.plan(arena, 128, 32);
  DeviceBuffer memory(arena.bytes());
  arena.commit(memory.data());
  Stream stream;
  HostBatch host = test::first_batch(
      DataStream(pairs_of({{1, 2}, {1, 3}}), rules_of(DataConfig::Overflow::truncate), batch_of(8, 1, 1), 1, false));
  const Batch batch = buffers.upload(host, stream);
  host.documents.ids = {7};  // the next batch may be loaded now
  ASSERT_NE(batch.documents, nullptr);
  EXPECT_THAT(batch.documents->ids, ElementsAre(0, 1));
  EXPECT_THAT(batch.documents->targets, ElementsAre(1, 1));
  host.documents = {};
  EXPECT_EQ(buffers.upload(host, stream).documents, nullptr);
}

TEST_F(PreferenceData, TheWholeFileOfHelpfulAnswersLoads) {
  const char* data = std::getenv("LLMTRAIN_DATA");
  if (data == nullptr) GTEST_SKIP() << "needs LLMTRAIN_DATA";
  config_.train = {std::string(data) + "/dpo/hh_helpful.jsonl"};
  batch_ = batch_of(1024, 2, 8);
  config_.max_prompt_length = 512;
  const Dataset set = open();
  EXPECT_EQ(set.train->info().documents, 2 * 3131);
  EXPECT_EQ(set.train->info().rows.equal + set.train->info().rows.empty, 0);
  const DataStream pairs = stream(set);
  EXPECT_EQ(pairs.samples() + pairs.counts().lost_targets, 3131);
  EXPECT_GT(pairs.counts().shorter_prompts, 1000);
  HostBatch batch;
  pairs.load(pairs.plan(3).micro_batches[1], batch);
  EXPECT_EQ(batch.documents.ids.size(), 4U);
}

}  // namespace
}  // namespace llmtrain
