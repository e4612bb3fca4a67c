#include "data/files/token_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <new>
#include <numeric>

#include "data/stream/data_stream.hpp"
#include "data_files.hpp"

namespace llmtrain {
namespace {

using test::all_of_mask;
using test::all_tokens;
using test::Folder;
using test::offsets_of;
using test::refusal;
using test::write_token_file;
using testing::ElementsAre;
using testing::HasSubstr;

TokenFileInfo info_of(int64_t vocabulary) {
  TokenFileInfo info;
  info.vocabulary_size = vocabulary;
  info.eos_id = static_cast<int32_t>(vocabulary - 1);
  info.characters = 11;
  info.bytes = 12;
  info.skipped_documents = 3;
  info.tokenizer = R"({"type":"bytes","bos":false})";
  info.tokenizer_hash = "0123456789abcdef";
  info.command = "a test \u00e9";
  info.sources = {"a.txt 12 00ff", "a longer name.txt 3 11ee"};
  return info;
}

TEST(TokenFile, ComesBackAsWritten) {
  const Folder folder;
  for (const int64_t vocabulary : {65536, 65537}) {
    const std::vector<int32_t> ids = {0, static_cast<int32_t>(vocabulary - 1), 7, 8, 9};
    const std::vector<uint8_t> mask = {1, 0, 1, 1, 0};
    const std::string path = folder / "x.h5";
    write_token_file(path, info_of(vocabulary), ids, mask, std::vector<uint64_t>{0, 2, 5});
    const auto file = open_token_file(path);
    EXPECT_EQ(all_tokens(*file), ids);
    EXPECT_EQ(all_of_mask(*file), mask);
    EXPECT_THAT(offsets_of(*file), ElementsAre(0, 2, 5));
    const TokenFileInfo& info = file->info();
    EXPECT_EQ(info.path, path);
    EXPECT_EQ(info.tokens, 5);
    EXPECT_EQ(info.documents, 2);
    EXPECT_EQ(info.vocabulary_size, vocabulary);
    EXPECT_EQ(info.eos_id, vocabulary - 1);
    EXPECT_TRUE(info.has_mask);
    EXPECT_EQ(info.characters, 11);
    EXPECT_EQ(info.bytes, 12);
    EXPECT_EQ(info.skipped_documents, 3);
    EXPECT_EQ(info.tokenizer, info_of(vocabulary).tokenizer);
    EXPECT_EQ(info.tokenizer_hash, "0123456789abcdef");
    EXPECT_EQ(info.command, "a test \u00e9");
    EXPECT_EQ(info.sources, info_of(vocabulary).sources);
    int32_t middle[2];
    file->read(1, 2, middle);
    EXPECT_THAT(middle, ElementsAre(vocabulary - 1, 7));
    EXPECT_THROW(file->read(4, 2, middle), Error);
    EXPECT_THROW(file->read(-1, 1, middle), Error);
  }
  EXPECT_THAT(folder.names(), ElementsAre("x.h5"));
}

TEST(TokenFile, PairsComeBackWithTheirValues) {
  const Folder folder;
  TokenFileInfo info = info_of(10);
  info.group = 2;
  info.column = "margin";
  info.rows = {.used = 1, .equal = 3, .empty = 4, .first_equal = "a.jsonl:7", .first_empty = "b.jsonl:8"};
  const std::vector<int32_t> ids = {0, 7, 8, 9};
  write_token_file(folder / "x.h5", info, ids, {}, std::vector<uint64_t>{0, 2, 4}, std::vector<float>{-0.5F, 2});
  const auto file = open_token_file(folder / "x.h5");
  EXPECT_EQ(all_tokens(*file), ids);
  EXPECT_EQ(file->info().group, 2);
  EXPECT_EQ(file->info().column, "margin");
  EXPECT_THAT(file->values(), ElementsAre(-0.5F, 2));
  EXPECT_EQ(file->info().rows.equal, 3);
  EXPECT_EQ(file->info().rows.empty, 4);
  EXPECT_EQ(file->info().rows.first_equal, "a.jsonl:7");
  EXPECT_EQ(file->info().rows.first_empty, "b.jsonl:8");
}

TEST(TokenFile, WithoutMaskEverythingIsTrained) {
  const Folder folder;
  const std::vector<int32_t> ids(200000, 3);  // more than one block of reading
  write_token_file(folder / "x.h5", info_of(10), ids, {}, std::vector<uint64_t>{0, ids.size()});
  const auto file = open_token_file(folder / "x.h5");
  EXPECT_FALSE(file->info().has_mask);
  EXPECT_EQ(all_tokens(*file), ids);
  EXPECT_EQ(all_of_mask(*file), std::vector<uint8_t>(ids.size(), 1));
}

TEST(TokenFile, AttributesMayBeLongerThan64KiB) {
  const Folder folder;
  TokenFileInfo info = info_of(10);
  info.tokenizer = std::string(3 << 20, 't') + "end";
  info.sources.assign(5000, "a file name of some length.txt 123456 0123456789abcdef0123456789abcdef");
  info.sources.back() = "last";
  write_token_file(folder / "x.h5", info, std::vector<int32_t>{1, 2}, {}, std::vector<uint64_t>{0, 2});
  const auto file = open_token_file(folder / "x.h5");
  EXPECT_EQ(file->info().tokenizer, info.tokenizer);
  EXPECT_EQ(file->info().sources, info.sources);
}

TEST(TokenFile, SameContentSameBytes) {
  const Folder folder;
  for (const char* name : {"a.h5", "b.h5", "c.h5"}) {
    const int32_t last = name[0] == 'c' ? 2 : 1;
    write_token_file(folder / name, info_of(10), std::vector<int32_t>{1, last}, {}, std::vector<uint64_t>{0, 2});
  }
  EXPECT_EQ(test::content_of(folder / "a.h5"), test::content_of(folder / "b.h5"));
  EXPECT_NE(test::content_of(folder / "a.h5"), test::content_of(folder / "c.h5"));
  struct stat status {};
  ASSERT_EQ(stat((folder / "a.h5").c_str(), &status), 0);
  const mode_t mask = umask(0);  // cannot be read alone
  umask(mask);
  EXPECT_EQ(status.st_mode & 07777, 0666 & ~mask);
}

TEST(TokenFileWriter, LeavesNothingWhenNotPublished) {
  const Folder folder;
  {
    TokenFileInfo info = info_of(10);
    info.tokens = 4;
    const TokenFileWriter writer(folder / "x.h5", info, std::vector<uint64_t>{0, 4});
    EXPECT_EQ(folder.names().size(), 1U);
  }
  EXPECT_TRUE(folder.names().empty());
  EXPECT_THAT(refusal([&] {
                write_token_file(folder / "no/folder/x.h5", info_of(10), std::vector<int32_t>{1}, {},
                                 std::vector<uint64_t>{0, 1});
              }),
              HasSubstr("73 "));
}

TEST(SplitTokens, CutsTheLastFractionOff) {
  const Folder folder;
  std::vector<int32_t> ids(10);
  std::iota(ids.begin(), ids.end(), 0);
  const std::vector<uint8_t> mask = {1, 1, 1, 1, 1, 1, 0, 1, 0, 1};
  write_token_file(folder / "x.h5", info_of(10), ids, mask, std::vector<uint64_t>{0, 3, 8, 10});
  const auto file = open_token_file(folder / "x.h5");
  const SplitTokens split = split_tokens(file, 0.35);  // floor(6.5) = 6
  EXPECT_THAT(all_tokens(*split.train), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(offsets_of(*split.train), ElementsAre(0, 3, 6));
  EXPECT_THAT(all_tokens(*split.validation), ElementsAre(6, 7, 8, 9));
  EXPECT_THAT(offsets_of(*split.validation), ElementsAre(0, 2, 4));
  EXPECT_THAT(all_of_mask(*split.validation), ElementsAre(0, 1, 0, 1));
  EXPECT_EQ(split.validation->info().documents, 2);
  EXPECT_EQ(split.train->info().tokens, 6);
  int32_t id = 0;
  EXPECT_THROW(split.train->read(6, 1, &id), Error);

  const SplitTokens on_border = split_tokens(file, 0.2);
  EXPECT_THAT(offsets_of(*on_border.train), ElementsAre(0, 3, 8));
  EXPECT_THAT(offsets_of(*on_border.validation), ElementsAre(0, 2));

  const SplitTokens none = split_tokens(file, 0);
  EXPECT_EQ(none.train, file);
  EXPECT_EQ(none.validation, nullptr);
  EXPECT_THAT(refusal([&] { split_tokens(file, 0.95); }),
              HasSubstr("65 " + file->info().path +
                        ": of 10 tokens, data.validation_fraction = 0.95 leaves 0 for training and 10 for validation; "
                        "both need some. Give another fraction, 0 (no evaluation) or more text"));
  EXPECT_THAT(refusal([&] { split_tokens(file, 1e-20); }), HasSubstr("leaves 10 for training and 0 for validation"));
}

TEST(ConcatenateTokens, ReadsAcrossBorders) {
  const Folder folder;
  const auto write = [&](const std::string& name, const TokenFileInfo& info, std::vector<int32_t> ids,
                         std::vector<uint8_t> mask, std::vector<uint64_t> documents) {
    write_token_file(folder / name, info, ids, mask, documents);
    return open_token_file(folder / name);
  };
  const auto a = write("a.h5", info_of(10), {0, 1, 2}, {}, {0, 1, 3});
  const auto b = write("b.h5", info_of(10), {3}, {0}, {0, 1});
  const auto c = write("c.h5", info_of(10), {4, 5}, {}, {0, 2});
  const auto all = concatenate_tokens({a, b, c});
  EXPECT_THAT(all_tokens(*all), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(all_of_mask(*all), ElementsAre(1, 1, 1, 0, 1, 1));
  EXPECT_THAT(offsets_of(*all), ElementsAre(0, 1, 3, 4, 6));
  for (int64_t begin = 0; begin <= 6; ++begin) {
    for (int64_t count = 0; begin + count <= 6; ++count) {
      std::vector<int32_t> part(static_cast<size_t>(count)), expected(static_cast<size_t>(count));
      std::iota(expected.begin(), expected.end(), static_cast<int32_t>(begin));
      all->read(begin, count, part.data());
      EXPECT_EQ(part, expected);
    }
  }
  EXPECT_EQ(all->info().documents, 4);
  EXPECT_EQ(all->info().sources.size(), 6U);
  EXPECT_EQ(concatenate_tokens({a}), a);
  const auto other = write("d.h5", info_of(11), {4}, {}, {0, 1});
  EXPECT_THAT(refusal([&] { concatenate_tokens({a, other}); }), HasSubstr("65 "));
}

/// Returns the address space of the process in bytes.
int64_t address_space() {
  std::ifstream status("/proc/self/statm");
  int64_t pages = 0;
  status >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

TEST(TokenFile, MayBeLargerThanMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need address space of their own";
#endif
  const test::Folder folder;
  const std::string path = folder / "large.h5";
  constexpr int64_t tokens = int64_t{1} << 33, marked = (int64_t{1} << 32) + 12345;  // 16 GiB, sparse
  TokenFileInfo info;
  info.tokens = tokens;
  info.vocabulary_size = 300;
  {
    TokenFileWriter writer(path, info, std::vector<uint64_t>{0, tokens / 2, tokens});
    TokenRegionWriter(writer.target()).write(marked, std::vector<int32_t>{7, 8, 9});
    writer.publish();
  }
  struct rlimit before {};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  struct rlimit limit = before;
  limit.rlim_cur = static_cast<rlim_t>(address_space() + (int64_t{256} << 20));
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  int64_t seen = 0;
  std::vector<int32_t> found(3);
  std::string failure;
  try {
    const auto file = open_token_file(path);
    file->read(marked, 3, found.data());
    SampleRules data;
    BatchConfig batch;
    batch.sequence_length = 1024;
    batch.micro = batch.global = 16;
    const DataStream stream(file, data, batch, 1, true);
    HostBatch loaded;
    for (int64_t step = 0; step < 200; ++step) {
      stream.load(stream.plan(step).micro_batches.at(0), loaded);
      seen += static_cast<int64_t>(loaded.ids.size());
    }
  } catch (const std::exception& error) {
    failure = error.what();
  }
  bool control = false;
  try {
    const std::vector<int32_t> all(tokens);
    seen += all[marked];
  } catch (const std::bad_alloc&) {
    control = true;
  }
  setrlimit(RLIMIT_AS, &before);
  EXPECT_EQ(failure, "");
  EXPECT_THAT(found, testing::ElementsAre(7, 8, 9));
  EXPECT_EQ(seen, 200 * 16 * 1024);
  EXPECT_TRUE(control) << "all tokens at once fit into no such memory";
}

}  // namespace
}  // namespace llmtrain
