// Compressed files: read, refused, and used as sources.
#include "data/files/unpack.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <random>

#include "compressed_data.hpp"
#include "data/dataset.hpp"
#include "data/files/compressed_file.hpp"
#include "data_files.hpp"
#include "harness/peak_memory.hpp"
#include "parallel/local_communicator.hpp"

namespace llmtrain {
namespace {

using test::all_tokens;
using test::Folder;
using test::gzipped;
using test::peak_memory;
using test::refusal;
using test::with_sanitizer;
using test::zstd_packed;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int64_t no_limit = int64_t{1} << 40;

std::string unpacked(const std::string& path, int64_t limit = no_limit, int64_t step = 1000003) {
  const FileHandle file = FileHandle::open_to_read(path);
  CompressedReader reader(file, compression_of(path), limit);
  std::string text, piece(static_cast<size_t>(step), '\0');
  for (int64_t n = reader.read(piece.data(), step); n > 0; n = reader.read(piece.data(), step)) {
    text.append(piece, 0, static_cast<size_t>(n));
  }
  return text;
}

std::string sample_text(size_t size) {
  std::mt19937 random(3);
  std::string text;
  while (text.size() < size) text += "word" + std::to_string(random() % 1000) + (random() % 20 == 0 ? "\n\n" : " ");
  return text;
}

TEST(CompressedReader, GivesBackWhatWasPacked) {
  const Folder folder;
  const std::string text = sample_text(3'000'000);
  const std::string gz = folder.file("a.gz", gzipped(text)), zst = folder.file("a.zst", zstd_packed(text));
  EXPECT_TRUE(unpacked(gz) == text);
  EXPECT_TRUE(unpacked(zst) == text);
  EXPECT_TRUE(unpacked(gz, no_limit, 7) == text);
  EXPECT_TRUE(unpacked(zst, no_limit, 7) == text);
  EXPECT_EQ(unpacked(folder.file("empty.gz", gzipped(""))), "");
  EXPECT_EQ(unpacked(folder.file("empty.zst", zstd_packed(""))), "");
}

TEST(CompressedReader, ReadsMembersAndFrames) {
  const Folder folder;
  const std::string text = sample_text(600'000);
  std::string gz, zst;
  for (const auto& [begin, length] : {std::pair<size_t, size_t>{0, 5}, {5, 0}, {5, 400'000}, {400'005, 300'000}}) {
    gz += gzipped(text.substr(begin, length));
    zst += zstd_packed(text.substr(begin, length));
  }
  const std::string skippable("\x50\x2A\x4D\x18\x03\x00\x00\x00xyz", 11);
  EXPECT_TRUE(unpacked(folder.file("a.gz", gz)) == text);
  EXPECT_TRUE(unpacked(folder.file("a.zst", skippable + zst + skippable)) == text);
}

TEST(CompressedReader, RefusesWhatIsDamaged) {
  const Folder folder;
  const std::string text = sample_text(300'000);
  for (const bool is_gzip : {true, false}) {
    const std::string ending = is_gzip ? ".gz" : ".zst", whole = is_gzip ? gzipped(text) : zstd_packed(text);
    const auto verdict = [&](const std::string& bytes) {
      const std::string path = folder.file("x" + ending, bytes);
      return refusal([&] { unpacked(path); });
    };
    EXPECT_EQ(verdict(whole), "nothing was thrown");
    for (const size_t size : {size_t{0}, size_t{3}, whole.size() / 2, whole.size() - 1}) {
      EXPECT_THAT(verdict(whole.substr(0, size)),
                  AllOf(StartsWith("65 "), HasSubstr("x" + ending + ": compressed byte "), HasSubstr("was cut off")))
          << size;
    }
    EXPECT_THAT(verdict(whole + "trailing text that is none"), AllOf(StartsWith("65 "), HasSubstr("compressed byte")));
    EXPECT_THAT(verdict(text), AllOf(StartsWith("65 "), HasSubstr("compressed byte")));
    std::mt19937 random(7);
    for (int flip = 0; flip < 60; ++flip) {
      // Bits of the data and of the checksum; nobody checks some bits of a gzip header.
      std::string damaged = whole;
      damaged[10 + random() % (whole.size() - 10)] ^= static_cast<char>(1 << random() % 8);
      EXPECT_THAT(verdict(damaged), StartsWith("65 ")) << flip << ending;
    }
  }
}

TEST(CompressedReader, ZerosPadAGzipFileAndNothingElseDoes) {
  const Folder folder;
  const std::string whole = gzipped("text"), zeros(600'000, '\0');
  EXPECT_EQ(unpacked(folder.file("a.gz", whole + zeros)), "text");
  EXPECT_EQ(unpacked(folder.file("b.gz", whole + zeros + whole + std::string(1, '\0'))), "texttext");
  EXPECT_THAT(
      refusal([&] { unpacked(folder.file("c.gz", whole + zeros + "x")); }),
      AllOf(StartsWith("65 "), HasSubstr("compressed byte " + std::to_string(whole.size() + zeros.size()) + ":")));
  EXPECT_THAT(refusal([&] { unpacked(folder.file("d.gz", whole + zeros + whole.substr(0, 12))); }),
              HasSubstr("was cut off"));
  EXPECT_THAT(refusal([&] { unpacked(folder.file("e.gz", zeros)); }), StartsWith("65 ")) << "no gzip file at all";
  EXPECT_THAT(refusal([&] { unpacked(folder.file("f.zst", zstd_packed("text") + zeros)); }), StartsWith("65 "))
      << "zstd -dc refuses it, too";
}

TEST(CompressedReader, ABombEndsInBoundedMemory) {
  const Folder folder;
  const std::string zeros(256 << 20, '\0');
  const std::string gz = folder.file("a.gz", gzipped(zeros, 1)), zst = folder.file("a.zst", zstd_packed(zeros));
  EXPECT_LT(std::filesystem::file_size(zst), 100'000U);
  const int64_t before = peak_memory();
  EXPECT_THAT(refusal([&] { unpacked(gz, 1 << 20); }), AllOf(StartsWith("65 "), HasSubstr("more than 1048576 bytes")));
  EXPECT_THAT(refusal([&] { unpacked(zst, 1 << 20); }), AllOf(StartsWith("65 "), HasSubstr("data.unpacked_limit")));
  EXPECT_LT(peak_memory() - before, with_sanitizer(int64_t{64} << 20));
  EXPECT_EQ(unpacked(gz, 256 << 20).size(), zeros.size());
}

TEST(CompressedReader, AWindowBeyondTheUsualIsRefused) {
  const Folder folder;
  // Magic, a frame header of one window byte that declares 2^41 bytes, an empty last block.
  const std::string huge("\x28\xB5\x2F\xFD\x00\xF8\x01\x00\x00", 9);
  EXPECT_THAT(refusal([&] { unpacked(folder.file("a.zst", huge)); }), StartsWith("65 "));
  const std::string small("\x28\xB5\x2F\xFD\x00\x58\x01\x00\x00", 9);
  EXPECT_EQ(unpacked(folder.file("b.zst", small)), "");
}

class Unpacked : public testing::Test {
 protected:
  Unpacked() {
    config_.cache = folder_ / "cache";
    config_.validation_fraction = 0;
    config_.tokenizer = "bytes";
    batch_.sequence_length = 8;
    batch_.global = 1;
  }
  Dataset open() {
    reports_.clear();
    return open_dataset(config_, batch_, *communicator_, [&](const std::string& line) { reports_.push_back(line); });
  }

  Folder folder_;
  SampleRules config_;
  BatchConfig batch_;
  std::unique_ptr<Communicator> communicator_ = make_local_communicator();
  std::vector<std::string> reports_;
};

TEST_F(Unpacked, FilesAreUsedLikePlainOnes) {
  const std::string text = sample_text(3'000'000);
  const std::string row = "{\"text\":\"a row\"}\n{\"text\":\"another\"}\n", ids = "{\"input_ids\":[1,2]}\n";
  for (const char* tokenizer : {"bytes", "char"}) {
    config_.tokenizer = tokenizer;
    config_.document_separator = "\n\n";
    config_.train = {folder_.file("a.txt", text), folder_.file("b.jsonl", row)};
    const Dataset plain = open();
    config_.train = {folder_.file("a.txt.zst", zstd_packed(text)), folder_.file("b.jsonl.gz", gzipped(row))};
    const Dataset data = open();
    EXPECT_TRUE(all_tokens(*data.train) == all_tokens(*plain.train));
    EXPECT_THAT(data.train->info().sources.front(), StartsWith("a.txt.zst "));
  }
  open();
  for (const std::string& line : reports_) {
    EXPECT_FALSE(line.starts_with("unpacking") || line.starts_with("tokenizing")) << line;
  }
  config_.train = {folder_.file("c.jsonl.gz", gzipped(ids))};
  EXPECT_EQ(open().tokenizer, nullptr) << "rows of ids";
}

TEST_F(Unpacked, DamagedTextInTheCacheIsMadeAgain) {
  const std::string text = sample_text(100'000);
  config_.train = {folder_.file("a.txt.zst", zstd_packed(text))};
  const std::vector<int32_t> tokens = all_tokens(*open().train);
  std::string unpacked;
  for (const auto& entry : std::filesystem::directory_iterator(config_.cache)) {
    const std::string path = entry.path().string();
    if (path.find("/unpacked-") != std::string::npos && path.ends_with(".txt")) unpacked = path;
  }
  const auto reported = [&](const std::string& what) {
    return std::any_of(reports_.begin(), reports_.end(),
                       [&](const auto& line) { return line.find(what) != line.npos; });
  };
  for (const bool same_size : {true, false}) {
    std::string damaged = text.substr(0, same_size ? text.size() : text.size() - 10);
    damaged[1000] ^= 1;
    std::ofstream(unpacked, std::ios::binary) << damaged;
    EXPECT_TRUE(all_tokens(*open().train) == tokens) << same_size;
    EXPECT_TRUE(reported("the unpacked text in the cache is damaged; unpacking it again"));
  }
  std::filesystem::remove(unpacked + ".digest");  // as if the job had been killed before
  EXPECT_TRUE(all_tokens(*open().train) == tokens);
  EXPECT_TRUE(reported("unpacking") && !reported("damaged"));
  open();
  EXPECT_FALSE(reported("unpacking"));
}

TEST_F(Unpacked, ErrorsNameTheFileThatPeopleKnow) {
  config_.train = {folder_.file("a.jsonl.gz", gzipped("{\"text\":\"a\"}\n{\"text\":3}\n"))};
  EXPECT_THAT(refusal([&] { open(); }), HasSubstr("a.jsonl.gz (unpacked):2: byte 22: 'text' must be a text"));
  config_.train = {folder_.file("b.txt.gz", gzipped("fine\n\xFF"))};
  EXPECT_THAT(refusal([&] { open(); }), HasSubstr("b.txt.gz (unpacked):2: byte 5: 0xff is not part of UTF-8"));
  config_.train = {folder_.file("c.txt.zst", zstd_packed(sample_text(100'000)).substr(0, 9000))};
  EXPECT_THAT(refusal([&] { open(); }), AllOf(StartsWith("65 "), HasSubstr("c.txt.zst: compressed byte 9000: ")));
  config_.train = {folder_.file("d.txt.gz", gzipped(sample_text(100'000)))};
  config_.unpacked_limit = 50'000;
  EXPECT_THAT(refusal([&] { open(); }), HasSubstr("data.unpacked_limit"));
  config_.unpacked_limit = no_limit;
  EXPECT_GT(open().train->tokens(), 100'000);
  config_.train = {folder_.file("e.txt.gz", gzipped(""))};
  EXPECT_THAT(refusal([&] { open(); }), HasSubstr("it has no text"));
  const std::vector<std::string> names = {"x.parquet", "x.tar.gz", "x.bz2", "x.h5.gz", "x.jsonl.xz"};
  for (const std::string& name : names) {
    config_.train = {folder_.file(name, "content")};
    EXPECT_THAT(refusal([&] { open(); }), AllOf(StartsWith("65 "), HasSubstr(name + ": "))) << name;
  }
  EXPECT_THAT(refusal([&] {
                config_.train = {folder_ / "x.parquet"};
                open();
              }),
              HasSubstr("its first bytes that it is not"));
}

}  // namespace
}  // namespace llmtrain
