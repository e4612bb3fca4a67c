#include "data/dataset.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <random>

#include "corpus/stories.hpp"
#include "data/files/cache_folder.hpp"
#include "data/files/text_source.hpp"
#include "data_files.hpp"
#include "dataset_fixture.hpp"
#include "parallel/local_communicator.hpp"

namespace llmtrain {
namespace {

using test::all_tokens;
using test::DatasetTest;
using test::Folder;
using test::offsets_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

/// Expected token file of one document, computed in a simple way.
std::vector<int32_t> plain_tokens(const Tokenizer& tokenizer, const std::string& document) {
  std::vector<int32_t> ids;
  if (tokenizer.bos_id() >= 0) ids.push_back(tokenizer.bos_id());
  tokenizer.encode(document, ids);
  ids.push_back(tokenizer.eos_id());
  return ids;
}

TEST_F(DatasetTest, AFileIsADocument) {
  config_.train = {folder_.file("b.txt", "ab\r\n"), folder_.file("a.txt", "\n\nca")};
  const Dataset data = open();
  // Vocabulary \n \r a b c EOS; files in the order given.
  EXPECT_EQ(data.vocabulary_size, 6);
  EXPECT_THAT(all_tokens(*data.train), ElementsAre(2, 3, 1, 0, 5, 0, 0, 4, 2, 5));
  EXPECT_THAT(offsets_of(*data.train), ElementsAre(0, 5, 10));
  EXPECT_EQ(data.validation, nullptr);
  EXPECT_EQ(data.optimum, 0);
  const TokenFileInfo& info = data.train->info();
  EXPECT_EQ(info.characters, 8);
  EXPECT_EQ(info.bytes, 8);
  EXPECT_EQ(info.eos_id, 5);
  EXPECT_EQ(info.tokenizer, data.tokenizer->serialized());
  EXPECT_THAT(info.sources, ElementsAre(HasSubstr("b.txt 4 "), HasSubstr("a.txt 4 ")));
  EXPECT_TRUE(tokenized());
}

TEST_F(DatasetTest, SeparatorsAreNotPartOfDocuments) {
  config_.tokenizer = "bytes";
  config_.document_separator = "\n\n";
  config_.train = {folder_.file("a.txt", "\n\nab\n\n\nc\n\n\n\n\n\nd\n")};
  const Dataset data = open();
  EXPECT_THAT(all_tokens(*data.train), ElementsAre('a', 'b', 256, '\n', 'c', 256, 'd', '\n', 256));
  EXPECT_EQ(data.train->info().skipped_documents, 3);
  config_.document_separator = "ab";
  EXPECT_THAT(offsets_of(*open().train), ElementsAre(0, 3, 16));
  config_.document_separator = "<|end|>";
  config_.train = {folder_.file("b.txt", "one<|end|>two<|end|>")};
  EXPECT_THAT(offsets_of(*open().train), ElementsAre(0, 4, 8));
  EXPECT_THAT(folder_.names(), SizeIs(3));
  config_.train = {folder_.file("c.txt", "<|end|><|end|>")};
  EXPECT_THAT(refused(), AllOf(HasSubstr("65 "), HasSubstr("c.txt"), HasSubstr("no text")));
}

TEST_F(DatasetTest, BosComesBeforeEveryDocument) {
  config_.document_separator = "|";
  config_.add_bos = true;
  config_.train = {folder_.file("a.txt", "ab|a")};
  const Dataset data = open();
  EXPECT_THAT(all_tokens(*data.train), ElementsAre(4, 0, 1, 3, 4, 0, 3));  // a b | EOS BOS
  EXPECT_EQ(data.vocabulary_size, 5);
}

/// Documents with sizes around that of a piece, and characters of 1 to 4 bytes.
std::vector<std::string> random_documents(uint32_t seed) {
  const std::vector<std::string> characters = {"a", "\n", "\u00e9", "\u20ac", "\U0001F600", "z"};
  std::mt19937 random(seed);
  std::vector<std::string> documents;
  for (const size_t size : {3'300'000, 5, 1'048'575, 1'048'577, 1, 2'097'152, 40, 700'000, 500'000}) {
    std::string& document = documents.emplace_back();
    while (document.size() < size) document += characters[random() % characters.size()];
  }
  for (int i = 0; i < 20000; ++i) {
    std::string& document = documents.emplace_back();
    do document += characters[random() % characters.size()];
    while (random() % 30 != 0);
  }
  return documents;
}

TEST_F(DatasetTest, PiecesAreJoinedWithoutASeam) {
  const std::vector<std::string> documents = random_documents(1);
  std::string text;
  for (const std::string& document : documents) text += document + "##";
  config_.document_separator = "##";
  config_.train = {folder_.file("a.txt", text)};
  for (const char* threads : {"1", "3"}) {
    for (const bool add_bos : {false, true}) {
      setenv("OMP_NUM_THREADS", threads, 1);
      config_.cache = folder_ / (std::string("cache") + threads);
      config_.add_bos = add_bos;
      const Dataset data = open();
      std::vector<int32_t> expected;
      std::vector<uint64_t> offsets = {0};
      for (const std::string& document : documents) {
        const std::vector<int32_t> ids = plain_tokens(*data.tokenizer, document);
        expected.insert(expected.end(), ids.begin(), ids.end());
        offsets.push_back(expected.size());
      }
      EXPECT_EQ(data.vocabulary_size, 6 + 1 + 1 + (add_bos ? 1 : 0));  // and '#'
      EXPECT_TRUE(all_tokens(*data.train) == expected);
      EXPECT_TRUE(offsets_of(*data.train) == offsets);
    }
  }
}

TEST_F(DatasetTest, SeparatorsAcrossPiecesAreFound) {
  config_.tokenizer = "bytes";
  config_.document_separator = "<separator>";
  for (int64_t shift = -12; shift <= 2; ++shift) {
    const std::string first(static_cast<size_t>(hash_piece + shift), 'x');
    config_.train = {folder_.file("a.txt", first + "<separator>y")};
    EXPECT_THAT(offsets_of(*open().train), ElementsAre(0, first.size() + 1, first.size() + 3)) << shift;
  }
  // Matches are found from left to right, even if they could overlap across a piece.
  config_.document_separator = "--";
  const std::string dashes(static_cast<size_t>(hash_piece) + 1, '-');
  config_.train = {folder_.file("a.txt", dashes + "x")};
  EXPECT_THAT(offsets_of(*open().train), ElementsAre(0, 3));  // "-x" and EOS
}

TEST_F(DatasetTest, TheVocabularyCoversValidation) {
  config_.train = {folder_.file("a.txt", "ac")};
  config_.validation = {folder_.file("b.txt", "b")};
  const Dataset data = open();
  EXPECT_EQ(data.vocabulary_size, 4);
  EXPECT_THAT(all_tokens(*data.train), ElementsAre(0, 2, 3));
  EXPECT_THAT(all_tokens(*data.validation), ElementsAre(1, 3));
}

TEST_F(DatasetTest, TheLastTokensAreForValidation) {
  config_.validation_fraction = 0.25;
  config_.train = {folder_.file("a.txt", "abcdefghijk")};
  const Dataset data = open();
  EXPECT_THAT(all_tokens(*data.train), SizeIs(9));
  EXPECT_THAT(all_tokens(*data.validation), ElementsAre(9, 10, 11));
}

TEST_F(DatasetTest, TheCacheIsKeyedByContentAndSettings) {
  config_.train = {folder_.file("a.txt", "some text")};
  open();
  EXPECT_TRUE(tokenized());
  open();
  EXPECT_FALSE(tokenized());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(config_.cache), {}), 2);  // tokens and their digest
  folder_.file("a.txt", "some text, changed");
  EXPECT_THAT(all_tokens(*open().train), SizeIs(19));
  EXPECT_TRUE(tokenized());
  config_.tokenizer = "bytes";
  EXPECT_EQ(open().vocabulary_size, 257);
  EXPECT_TRUE(tokenized());
  config_.document_separator = " ";
  EXPECT_EQ(open().train->info().documents, 3);
  folder_.file("a.txt", "some text");
  config_.tokenizer = "char";
  config_.document_separator = "";
  open();
  EXPECT_FALSE(tokenized());
}

TEST_F(DatasetTest, ADamagedCacheIsMadeAgain) {
  config_.train = {folder_.file("a.txt", std::string(3'000'000, 'x') + "y")};
  const std::vector<int32_t> ids = all_tokens(*open().train);
  const std::string path = open().train->info().path;
  const std::string bytes = test::content_of(path);
  const auto damaged = [&](const std::string& content) {
    std::ofstream(path, std::ios::binary) << content;
    EXPECT_TRUE(all_tokens(*open().train) == ids);
    EXPECT_THAT(reports_, testing::Contains(HasSubstr("damaged")));
    EXPECT_TRUE(test::content_of(path) == bytes);
  };
  for (const size_t place : {size_t{20}, bytes.size() / 3, bytes.size() - 1}) {
    std::string flipped = bytes;
    flipped[place] = static_cast<char>(flipped[place] ^ 4);
    damaged(flipped);
  }
  damaged(bytes.substr(0, 1000));
  damaged(bytes + "more");
  damaged("");
  std::filesystem::remove(path + ".digest");
  EXPECT_TRUE(all_tokens(*open().train) == ids);
  EXPECT_TRUE(tokenized());
}

TEST_F(DatasetTest, LeftoversOfKilledJobsAreRemovedAfterADay) {
  config_.train = {folder_.file("a.txt", "text")};
  open();
  const Folder& folder = folder_;
  folder.file("cache/tokens-1.h5.old.tmp", "x");
  folder.file("cache/tokens-2.h5.new.tmp", "x");
  folder.file("cache/foreign.tmp", "x");
  for (const char* name : {"cache/tokens-1.h5.old.tmp", "cache/foreign.tmp"}) {
    std::filesystem::last_write_time(folder / name,
                                     std::filesystem::file_time_type::clock::now() - std::chrono::hours(25));
  }
  open();
  EXPECT_FALSE(std::filesystem::exists(folder / "cache/tokens-1.h5.old.tmp"));
  EXPECT_TRUE(std::filesystem::exists(folder / "cache/tokens-2.h5.new.tmp"));
  EXPECT_TRUE(std::filesystem::exists(folder / "cache/foreign.tmp"));
}

TEST_F(DatasetTest, PatternsAreSortedAndFilesNamedOnce) {
  for (const char* name : {"x3.txt", "x1.txt", "x2.txt", "y.txt"}) folder_.file(name, std::string(1, name[1]));
  config_.tokenizer = "bytes";
  config_.train = {folder_ / "y.txt", folder_ / "x*.txt"};
  EXPECT_THAT(all_tokens(*open().train), ElementsAre('.', 256, '1', 256, '2', 256, '3', 256));
  config_.train.push_back(folder_ / "x2.txt");
  EXPECT_THAT(refused(), AllOf(HasSubstr("78 "), HasSubstr("named twice")));
  config_.train = {folder_ / "[x].txt"};
  EXPECT_THAT(refused(), AllOf(HasSubstr("66 "), HasSubstr("no file matches")));
  folder_.file("[x].txt", "q");
  EXPECT_THAT(all_tokens(*open().train), ElementsAre('q', 256));
}

TEST_F(DatasetTest, MoreFilesThanMayBeOpenAtOnce) {
  for (int i = 0; i < 300; ++i)
    folder_.file("f" + std::to_string(1000 + i), std::string(1, static_cast<char>('0' + i % 10)));
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  rlimit few = before;
  few.rlim_cur = 200;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  config_.train = {folder_ / "f*"};
  EXPECT_EQ(open().train->info().documents, 300);
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST_F(DatasetTest, ErrorsNameFileLineAndByte) {
  config_.train = {folder_ / "missing.txt"};
  EXPECT_THAT(refused(), AllOf(HasSubstr("66 "), HasSubstr("missing.txt")));
  config_.train = {folder_.path()};
  EXPECT_THAT(refused(), HasSubstr("66 "));
  ASSERT_EQ(mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  config_.train = {folder_ / "pipe"};
  EXPECT_THAT(refused(), AllOf(HasSubstr("66 "), HasSubstr("not a regular file")));
  config_.train = {folder_.file("empty.txt", "")};
  EXPECT_THAT(refused(), AllOf(HasSubstr("65 "), HasSubstr("is empty")));
  config_.train = {folder_.file("latin.txt", "one\ntwo\ncaf\xE9 four")};
  EXPECT_THAT(refused(), AllOf(HasSubstr("65 "), HasSubstr("latin.txt:3: byte 11: 0xe9")));
  config_.train = {folder_.file("wide.txt", "\xFF\xFEh\0i\0")};
  EXPECT_THAT(refused(), HasSubstr("UTF-16"));
  config_.train = {folder_.file("cut.txt", "cut \xE2\x82")};
  EXPECT_THAT(refused(), HasSubstr("cut.txt:1: byte 4"));
  config_.tokenizer = "bytes";
  EXPECT_THAT(refused(), HasSubstr("cut.txt:1: byte 4"));
  config_.cache = folder_.file("no_folder", "");
  config_.train = {folder_.file("a.txt", "a")};
  EXPECT_THAT(refused(), AllOf(HasSubstr("73 "), HasSubstr("data.cache")));
}

TEST_F(DatasetTest, InvalidBytesAreFoundWhereverPiecesMeet) {
  std::string text(static_cast<size_t>(hash_piece) * 2, 'x');
  text[100] = '\n';
  for (int64_t shift = -4; shift <= 4; ++shift) {
    const size_t place = static_cast<size_t>(hash_piece + shift);
    for (const std::string bad : {"\x80", "\xE2\x82", "\xF0\x9F\x98", "\x80\x80\x80\x80\x80", "\xC3"}) {
      std::string broken = text;
      broken.replace(place, bad.size(), bad);
      config_.train = {folder_.file("a.txt", broken)};
      const std::string message = refused();
      EXPECT_THAT(message, HasSubstr("a.txt:2: byte " + std::to_string(place) + ":")) << shift << ' ' << bad.size();
    }
    for (const std::string good : {"\u00e9", "\u20ac", "\U0001F600"}) {
      std::string whole = text;
      whole.replace(place, good.size(), good);
      config_.train = {folder_.file("a.txt", whole)};
      EXPECT_EQ(all_tokens(*open().train).size(), text.size() - good.size() + 2);
    }
  }
}

TEST_F(DatasetTest, TheExampleCorpusHasAKnownOptimum) {
  config_.train = {builtin_stories};
  config_.packing = DataConfig::Packing::none;
  batch_.sequence_length = longest_story;
  const Dataset data = open();
  const StoriesOptimum optimum = stories_optimum();
  EXPECT_DOUBLE_EQ(data.optimum, optimum.nats_per_story / optimum.characters_per_story);
  EXPECT_NEAR(static_cast<double>(data.train->info().bytes), 8e6, longest_story);
  // Document 17 is story 17 and the end symbol.
  const auto offsets = data.train->documents();
  std::vector<int32_t> ids(offsets[18] - offsets[17]);
  data.train->read(static_cast<int64_t>(offsets[17]), static_cast<int64_t>(ids.size()), ids.data());
  EXPECT_EQ(data.tokenizer->decode(ids), story(1, 17));
  EXPECT_EQ(ids.back(), data.tokenizer->eos_id());

  config_.add_bos = true;
  EXPECT_EQ(open().optimum, 0) << "the first character and BOS do not fit";
  batch_.sequence_length = longest_story + 1;
  EXPECT_DOUBLE_EQ(open().optimum, optimum.nats_per_story / (optimum.characters_per_story + 1));
  config_.add_bos = false;
  config_.packing = DataConfig::Packing::wrap;
  EXPECT_EQ(open().optimum, 0);
  config_.packing = DataConfig::Packing::none;
  config_.validation = {folder_.file("a.txt", "Other text.")};
  EXPECT_EQ(open().optimum, 0);
  config_.validation = {builtin_stories};
  const Dataset both = open();
  EXPECT_GT(both.optimum, 0);
  EXPECT_NE(all_tokens(*both.validation)[10], -1);
  const auto border = both.validation->documents()[1];
  std::vector<int32_t> first(border);
  both.validation->read(0, static_cast<int64_t>(border), first.data());
  EXPECT_EQ(both.tokenizer->decode(first), story(2, 0)) << "not the stories that are trained on";
  config_.train.push_back(folder_ / "a.txt");
  EXPECT_THAT(refused(), HasSubstr("78 "));
}

TEST_F(DatasetTest, FilesAreCheckedWithoutReadingText) {
  std::vector<std::string> errors;
  const auto check = [&] {
    errors.clear();
    return check_data_files(config_,
                            [&](const char* key, const UserError& error) {
                              errors.push_back(std::string(key) + " " + std::to_string(static_cast<int>(error.code())) +
                                               " " + error.what());
                            })
        .vocabulary_size;
  };
  config_.train = {builtin_stories};
  EXPECT_EQ(check(), 0) << "only the text tells which characters there are";
  config_.tokenizer = "bytes";
  EXPECT_EQ(check(), 257);
  config_.tokenizer = "char";
  EXPECT_THAT(std::filesystem::exists(config_.cache), false);
  config_.train = {folder_.file("a.txt", "\xFF")};
  check();
  EXPECT_THAT(errors, testing::IsEmpty());
  config_.train = {folder_ / "missing.txt", folder_ / "a.txt", folder_ / "gone.txt"};
  config_.validation = {folder_.file("bad.h5", "no"), "builtin:storeis"};
  check();
  EXPECT_THAT(errors, testing::ElementsAre(HasSubstr("data.train 66"), HasSubstr("gone.txt"),
                                           HasSubstr("validation 78 builtin:storeis")));
  config_.validation = {folder_ / "bad.h5"};
  check();
  EXPECT_THAT(errors, testing::Contains(HasSubstr("data.validation 65")));
}

TEST_F(DatasetTest, LinesOfWindowsAndAByteOrderMark) {
  const std::string plain = "one\ntwo\n\nthree\n\nfour";
  std::string windows = "\xEF\xBB\xBF";
  for (const char c : plain) windows += c == '\n' ? std::string("\r\n") : std::string(1, c);
  config_.document_separator = "\n\n";
  config_.validation_fraction = 0;
  config_.train = {folder_.file("windows.txt", windows)};
  const Dataset data = open();
  ASSERT_EQ(data.train->info().documents, 3);
  std::vector<int32_t> ids(static_cast<size_t>(data.train->tokens()));
  data.train->read(0, data.train->tokens(), ids.data());
  EXPECT_EQ(data.tokenizer->decode(ids), "one\r\ntwothreefour");
  config_.train = {folder_.file("mark.txt", "\xEF\xBB\xBF")};
  EXPECT_THAT(refused(), HasSubstr("empty"));
}

TEST(DefaultCacheFolder, FollowsTheEnvironment) {
  setenv("XDG_CACHE_HOME", "/somewhere", 1);
  EXPECT_EQ(default_cache_folder(), "/somewhere/llmtrain");
  unsetenv("XDG_CACHE_HOME");
  setenv("HOME", "/people/me", 1);
  EXPECT_EQ(default_cache_folder(), "/people/me/.cache/llmtrain");
  unsetenv("HOME");
  setenv("TMPDIR", "/scratch", 1);
  EXPECT_THAT(default_cache_folder(), HasSubstr("/scratch/llmtrain-"));
}

}  // namespace
}  // namespace llmtrain
