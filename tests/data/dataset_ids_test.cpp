// Data of token ids: rows and token files.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "data/files/token_file.hpp"
#include "data_files.hpp"
#include "dataset_fixture.hpp"
#include "harness/peak_memory.hpp"

namespace llmtrain {
namespace {

using test::all_of_mask;
using test::all_tokens;
using test::DatasetTest;
using test::offsets_of;
using test::peak_memory;
using test::with_sanitizer;
using test::write_token_file;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(DatasetTest, RowsOfTokenIds) {
  config_.train = {folder_.file("a.jsonl",
                                "{\"input_ids\":[1,2,3]}\n\n{\"input_ids\":[]}\n"
                                "{\"input_ids\":[4,70000],\"labels\":[-100,70000]}\r\n{\"input_ids\":[5]}")};
  const Dataset data = open();
  EXPECT_EQ(data.tokenizer, nullptr);
  EXPECT_EQ(data.vocabulary_size, 70001);
  EXPECT_THAT(all_tokens(*data.train), ElementsAre(1, 2, 3, 4, 70000, 5));
  EXPECT_THAT(all_of_mask(*data.train), ElementsAre(1, 1, 1, 0, 1, 1));
  EXPECT_THAT(offsets_of(*data.train), ElementsAre(0, 3, 5, 6));
  EXPECT_EQ(data.train->info().eos_id, -1);
  EXPECT_EQ(data.train->info().skipped_documents, 1);
  open();
  EXPECT_FALSE(tokenized());
  config_.validation = {folder_.file("b.jsonl", "{\"input_ids\":[80000]}")};
  EXPECT_EQ(open().vocabulary_size, 80001);
  config_.validation = {folder_.file("c.txt", "text")};
  EXPECT_THAT(refused(), AllOf(HasSubstr("78 "), HasSubstr("cannot be mixed")));
  config_.validation.clear();
  config_.add_bos = true;
  EXPECT_THAT(refused(), AllOf(HasSubstr("78 "), HasSubstr("data.add_bos")));
}

TEST_F(DatasetTest, PaddingOfRowsIsLeftOutAndTold) {
  const std::string unpadded = "{\"input_ids\":[7,8]}\n";
  config_.train = {folder_.file("a.jsonl",
                                "{\"input_ids\":[0,0,7,8],\"attention_mask\":[0,0,1,1]}\n"
                                "{\"input_ids\":[0,0],\"attention_mask\":[0,0],\"position_ids\":[0,1]}\n" +
                                    unpadded)};
  const Dataset data = open();
  EXPECT_THAT(all_tokens(*data.train), ElementsAre(7, 8, 7, 8));
  EXPECT_EQ(data.train->info().skipped_documents, 1);
  EXPECT_FALSE(data.train->info().has_mask) << "everything that is left is trained on";
  EXPECT_THAT(reports_, testing::Contains(HasSubstr("4 tokens are padding (attention_mask 0) and are omitted")));
  const std::string padding = "{\"input_ids\":[0],\"attention_mask\":[0]}\n";
  config_.train = {folder_.file("b.jsonl", "{\"position_ids\":[0,1],\"input_ids\":[7,8]}\n" + padding + padding)};
  EXPECT_THAT(refused(), AllOf(HasSubstr("65 "), HasSubstr("2 of 3 rows are empty"), HasSubstr("attention_mask is 0")));
  EXPECT_THAT(reports_, testing::Contains(HasSubstr("b.jsonl: its rows have position_ids, which has no effect")));
}

TEST_F(DatasetTest, RowErrorsNameTheLine) {
  std::string rows;
  for (int i = 0; i < 300000; ++i) rows += "{\"input_ids\":[1,2]}\n";  // several pieces
  config_.train = {folder_.file("a.jsonl", rows + "{\"input_ids\":[1.5]}\n")};
  EXPECT_THAT(refused(), AllOf(HasSubstr("65 "), HasSubstr("a.jsonl:300001: byte 6000017: 1.5 is not an integer")));
  config_.train = {folder_.file("b.jsonl", "{\"input_ids\":[]}\n")};
  EXPECT_THAT(refused(), AllOf(HasSubstr("65 "), HasSubstr("no row has any token")));
  config_.train = {folder_.file("c.jsonl", rows)};
  EXPECT_EQ(open().train->info().documents, 300000);
}

/// Bytes that this process has read so far; 0 if the kernel does not count them.
int64_t bytes_read() {
  std::ifstream file("/proc/self/io");
  std::string name;
  int64_t bytes = 0;
  return file >> name >> bytes && name == "rchar:" ? bytes : 0;
}

TEST_F(DatasetTest, ALineWithoutEndIsRefusedInBoundedMemory) {
  const std::string path = folder_.file("a.jsonl", "{\"input_ids\":[1]}\n");
  std::filesystem::resize_file(path, uintmax_t{4} << 30);  // sparse: zeros without a newline
  config_.train = {path};
  config_.row_limit = int64_t{4} << 20;
  const int64_t before = peak_memory();
  const int64_t read_before = bytes_read();
  EXPECT_THAT(refused(),
              AllOf(HasSubstr("65 "), HasSubstr("a.jsonl:2: "), HasSubstr("the row has more than 67108864 bytes")));
  EXPECT_LT(bytes_read() - read_before, int64_t{256} << 20);
  EXPECT_LT(peak_memory() - before, with_sanitizer(int64_t{80} << 20));
}

TEST_F(DatasetTest, TokenFilesAreUsedAsTheyAre) {
  config_.train = {folder_.file("a.txt", "abcabc")};
  config_.tokenizer = "bytes";
  const std::string made = open().train->info().path;
  std::filesystem::copy(made, folder_ / "one.h5");
  std::filesystem::copy(made, folder_ / "two.h5");
  config_.tokenizer = "char";  // the counts of the file
  config_.train = {folder_ / "*.h5"};
  const Dataset data = open();
  EXPECT_EQ(data.train->tokens(), 14);
  EXPECT_EQ(data.vocabulary_size, 257);
  ASSERT_NE(data.tokenizer, nullptr);
  EXPECT_EQ(data.tokenizer->kind(), "bytes");

  TokenFileInfo info;
  info.vocabulary_size = 257;
  info.eos_id = 256;
  write_token_file(folder_ / "foreign.h5", info, std::vector<int32_t>{1}, {}, std::vector<uint64_t>{0, 1});
  config_.train = {folder_ / "foreign.h5"};
  EXPECT_EQ(open().tokenizer, nullptr);
  config_.validation = {folder_ / "one.h5"};
  EXPECT_THAT(refused(), AllOf(HasSubstr("65 "), HasSubstr("different tokenizers")));
  config_.validation.clear();
  info.vocabulary_size = 300;
  info.tokenizer = R"({"type":"bytes","bos":false})";
  write_token_file(folder_ / "wrong.h5", info, std::vector<int32_t>{1}, {}, std::vector<uint64_t>{0, 1});
  config_.train = {folder_ / "wrong.h5"};
  EXPECT_THAT(refused(), AllOf(HasSubstr("65 "), HasSubstr("contradicts")));
}

TEST_F(DatasetTest, ADecksTokenizerIsThatOfTokenIds) {
  config_.tokenizer_given = true;
  config_.tokenizer = "bytes";
  config_.train = {folder_.file("ids.jsonl", "{\"input_ids\":[1,2,256]}")};
  const Dataset rows = open();
  ASSERT_NE(rows.tokenizer, nullptr);
  EXPECT_EQ(rows.tokenizer->kind(), "bytes");
  EXPECT_EQ(rows.vocabulary_size, 257) << "not the highest id + 1 alone";
  config_.validation = {folder_.file("over.jsonl", "{\"input_ids\":[257]}")};
  EXPECT_THAT(refused(), AllOf(HasSubstr("65 "), HasSubstr("below 258"), HasSubstr("has 257")));
  config_.validation.clear();
  config_.tokenizer = "bpe";
  EXPECT_THAT(refused(), AllOf(HasSubstr("78 "), HasSubstr("trained on text")));
  config_.tokenizer = "char";  // without text: nothing
  EXPECT_EQ(open().vocabulary_size, 257);

  config_.train = {folder_.file("a.txt", "abcabc")};
  config_.tokenizer = "bytes";
  const std::string made = open().train->info().path;
  std::filesystem::copy(made, folder_ / "one.h5");
  config_.tokenizer = "char";
  std::filesystem::copy(open().train->info().path, folder_ / "char.h5");
  config_.tokenizer = "bytes";
  config_.train = {folder_ / "one.h5"};
  EXPECT_EQ(open().tokenizer->kind(), "bytes");
  std::vector<std::string> errors;
  const auto check = [&] {
    errors.clear();
    const auto keep = [&](const char* key, const UserError& error) {
      errors.push_back(fmt::format("{}: {}", key, error.what()));
    };
    return check_data_files(config_, keep).vocabulary_size;
  };
  EXPECT_EQ(check(), 257);
  EXPECT_THAT(errors, testing::IsEmpty());
  config_.tokenizer = folder_ / "one.h5";
  EXPECT_EQ(open().tokenizer->kind(), "bytes");
  for (const std::string& other : {std::string("bpe"), std::string(folder_ / "char.h5")}) {
    config_.tokenizer = other;
    EXPECT_THAT(refused(), AllOf(HasSubstr("78 "), HasSubstr("data.tokenizer")));
    check();
    EXPECT_THAT(errors, ElementsAre(HasSubstr("data.tokenizer"))) << "also without reading the data";
  }
  config_.tokenizer = "char";  // like the resolved deck of a run without the key
  EXPECT_EQ(open().tokenizer->kind(), "bytes");
  EXPECT_EQ(check(), 257);
  EXPECT_THAT(errors, testing::IsEmpty());
}

}  // namespace
}  // namespace llmtrain
