// Training data of several sources.
#include "data/files/data_sources.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/dataset.hpp"
#include "data_files.hpp"
#include "parallel/local_communicator.hpp"

namespace llmtrain {
namespace {

using test::all_tokens;
using test::Folder;
using test::refusal;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

TEST(SplitWeight, TheLastColonWithANumberIsAWeight) {
  const auto is = [](const std::string& entry, const std::string& pattern, double weight) {
    const WeightedPattern found = split_weight(entry);
    EXPECT_EQ(found.pattern, pattern) << entry;
    EXPECT_EQ(found.weight, weight) << entry;
  };
  is("web.h5:0.7", "web.h5", 0.7);
  is("code/*.h5:3", "code/*.h5", 3);
  is("odd:1:0.5", "odd:1", 0.5);
  is("a:1e-3", "a", 1e-3);
  is("web.h5", "web.h5", 0);
  is("builtin:stories", "builtin:stories", 0);
  is("a:b", "a:b", 0);
  is("a:", "a:", 0);
  is(":1", ":1", 0);
  is("a:inf", "a:inf", 0);
  is("a:1.5x", "a:1.5x", 0);
  for (const char* entry : {"a:0", "a:-1", "a:0.0"}) {
    EXPECT_THAT(refusal([&] { split_weight(entry); }), AllOf(StartsWith("78 "), HasSubstr("above 0"))) << entry;
  }
}

class Sources : public testing::Test {
 protected:
  Sources() {
    config_.cache = folder_ / "cache";
    config_.validation_fraction = 0;
    config_.packing = DataConfig::Packing::none;
    config_.document_separator = "|";
    batch_.sequence_length = 8;
    batch_.global = 4;
  }
  Dataset open() {
    return open_dataset(config_, batch_, *communicator_, [](const std::string&) {});
  }
  std::string refused() {
    return refusal([&] { open(); });
  }
  std::string token_file(const std::string& name, const std::string& text, const std::string& tokenizer) {
    SampleRules config = config_;
    config.train = {folder_.file(name + ".txt", text)};
    config.tokenizer = tokenizer;
    const Dataset made = open_dataset(config, batch_, *communicator_, [](const std::string&) {});
    std::filesystem::copy(made.train->info().path, folder_ / name);
    return folder_ / name;
  }

  Folder folder_;
  SampleRules config_;
  BatchConfig batch_;
  std::unique_ptr<Communicator> communicator_ = make_local_communicator();
};

TEST_F(Sources, KindsAreMixedWhereTheTokenizerIsOne) {
  const std::string tokens = token_file("made.h5", "abc|de|f", "char");
  const std::string text = folder_.file("a.txt", "fed|a"), rows = folder_.file("b.jsonl", "{\"text\":\"cab\"}\n");
  config_.train = {tokens + ":2", text + ":1", rows + ":1"};
  const Dataset data = open();
  ASSERT_EQ(data.sources.size(), 3U);
  EXPECT_EQ(data.sources[0].weight, 2);
  EXPECT_EQ(data.train->info().documents, 6);
  EXPECT_EQ(data.tokenizer->decode(all_tokens(*data.train)), "abcdeffedacab");
  EXPECT_EQ(data.vocabulary_size, 8) << "the token file's characters (its separator is one), though the text has fewer";
  const DataStream stream(data.sources, config_, batch_, 1, true);
  EXPECT_EQ(stream.samples(), 6);
  EXPECT_EQ(stream.plan(1000).micro_batches.size(), 4U);

  config_.train = {tokens, text, rows};  // one source
  EXPECT_EQ(open().sources.size(), 1U);
  EXPECT_EQ(open().tokenizer->decode(all_tokens(*open().train)), "abcdeffedacab");

  config_.train = {tokens + ":2", folder_.file("c.txt", "xyz") + ":1"};
  EXPECT_THAT(refused(), AllOf(StartsWith("65 "), HasSubstr("c.txt:1: byte 0: ")));
  config_.train = {tokens + ":2", text + ":1"};
  config_.tokenizer = "bytes";
  EXPECT_THAT(refused(), AllOf(StartsWith("78 "), HasSubstr("is not the tokenizer that")));
  config_.tokenizer = "char";
  config_.add_bos = true;
  EXPECT_THAT(refused(), AllOf(StartsWith("78 "), HasSubstr("is not the tokenizer that")));
  config_.add_bos = false;
  config_.train = {tokens + ":2", token_file("other.h5", "xyz", "char") + ":1"};
  EXPECT_THAT(refused(), AllOf(StartsWith("65 "), HasSubstr("different tokenizers")));
}

TEST_F(Sources, RowsOfIdsHaveTheLargerVocabulary) {
  config_.train = {folder_.file("a.jsonl", "{\"input_ids\":[1,2,3]}\n") + ":1",
                   folder_.file("b.jsonl", "{\"input_ids\":[7,90]}\n") + ":1"};
  EXPECT_EQ(open().vocabulary_size, 91);
}

TEST_F(Sources, ValidationIsTheEndOfEachSource) {
  config_.train = {folder_.file("a.txt", "aaaa|aaaa|aaaa|aaaa") + ":0.5", folder_.file("b.txt", "bbbb|bbbb") + ":0.5"};
  config_.validation_fraction = 0.5;
  const Dataset data = open();
  EXPECT_EQ(data.tokenizer->decode(all_tokens(*data.train)), "aaaaaaaabbbb");
  EXPECT_EQ(data.tokenizer->decode(all_tokens(*data.validation)), "aaaaaaaabbbb");
}

TEST_F(Sources, WhatCannotBeMeant) {
  const std::string a = folder_.file("a.txt", "a"), b = folder_.file("b.txt", "b");
  config_.train = {a + ":1", b};
  EXPECT_THAT(refused(), AllOf(StartsWith("78 "), HasSubstr("give a weight to each entry, or to none")));
  config_.train = {a + ":1", a + ":2"};
  EXPECT_THAT(refused(), AllOf(StartsWith("78 "), HasSubstr("it is in two sources")));
  config_.train = {a + ":1", "missing:2"};
  EXPECT_THAT(refused(), AllOf(StartsWith("66 "), HasSubstr("missing: there is no such file")));
  std::filesystem::copy(a, folder_ / "odd:1");
  config_.train = {folder_ / "odd:1"};
  EXPECT_THAT(refused(), AllOf(StartsWith("66 "), HasSubstr("odd: there is no such file")));
  config_.train = {(folder_ / "odd:1") + ":1"};
  EXPECT_EQ(open().train->info().documents, 1);
}

}  // namespace
}  // namespace llmtrain
