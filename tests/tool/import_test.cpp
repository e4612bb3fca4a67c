// llmtool import: token files of other trainers come in whole, damaged ones are refused. (Models: tests/decks.)

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "data/token_file.hpp"
#include "tool/tool_program.hpp"

namespace llmtrain {
namespace {

using test::llmtool;
using testing::ElementsAre;
using testing::HasSubstr;

class Import : public testing::Test {
 protected:
  Import() { std::filesystem::create_directories(folder_); }
  ~Import() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
  }
  static void expect_error(int code, const std::string& what, const std::vector<std::string>& arguments) {
    const test::Outcome outcome = llmtool(arguments);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(what));
  }
  std::string import(std::vector<std::string> arguments, const std::string& output) const {
    arguments.insert(arguments.begin(), "import");
    arguments.insert(arguments.end(), {"--output", path(output), "--force"});
    const test::Outcome outcome = llmtool(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return path(output);
  }

 private:
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("llmtrain_import_test_" + std::to_string(getpid()));
};

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::vector<int32_t> ids_of(const TokenFile& file) {
  std::vector<int32_t> ids(static_cast<size_t>(file.tokens()));
  file.read(0, file.tokens(), ids.data());
  return ids;
}

TEST_F(Import, NanoGptTokens) {
  write("train.bin", bytes_of<uint16_t>({5, 6, 9, 7, 9, 9, 8}));
  const auto file = open_token_file(
      import({path("train.bin"), "--format", "nanogpt", "--vocab-size", "10", "--eos-id", "9"}, "train.h5"));
  EXPECT_THAT(ids_of(*file), ElementsAre(5, 6, 9, 7, 9, 9, 8));
  EXPECT_THAT(file->documents(), ElementsAre(0, 3, 5, 6, 7));
  EXPECT_EQ(file->info().eos_id, 9);
  EXPECT_EQ(file->info().vocabulary_size, 10);
  const std::vector<std::string> import_it = {"import",     path("train.bin"), "--output",
                                              path("x.h5"), "--format",        "nanogpt"};
  const auto expect = [&](int code, const std::string& what, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = import_it;
    arguments.insert(arguments.end(), more.begin(), more.end());
    expect_error(code, what, arguments);
    EXPECT_FALSE(std::filesystem::exists(path("x.h5")));
  };
  expect(64, "give --tokenizer or --vocab-size", {});
  expect(64, "where documents end", {"--vocab-size", "10"});
  expect(65, "byte 4: token 2 has the id 9, outside the vocabulary of 9", {"--vocab-size", "9", "--eos-id", "8"});
  write("train.bin", "abc");
  expect(65, "no whole number of uint16", {"--vocab-size", "10", "--eos-id", "9"});
  expect_error(64, "name its --format", {"import", path("train.bin"), "--output", path("x.h5")});
}

TEST_F(Import, LlmCTokens) {
  std::vector<int32_t> header(256);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = 5;
  const std::string ids = bytes_of<uint16_t>({50256, 11, 12, 50256, 13});
  write("a.bin", bytes_of(header) + ids);
  const auto file = open_token_file(import({path("a.bin")}, "a.h5"));
  EXPECT_THAT(ids_of(*file), ElementsAre(50256, 11, 12, 50256, 13));
  EXPECT_THAT(file->documents(), ElementsAre(0, 1, 4, 5));
  EXPECT_EQ(file->info().vocabulary_size, 50257);
  header[2] = 6;
  write("a.bin", bytes_of(header) + ids);
  expect_error(65, "tells of 6 tokens", {"import", path("a.bin"), "--output", path("b.h5")});
  header[2] = 5;
  header[1] = 2;
  write("a.bin", bytes_of(header) + ids);
  expect_error(65, "version 2 is not known", {"import", path("a.bin"), "--output", path("b.h5")});
  header = {20240801, 7, 3};
  header.resize(256);
  write("a.bin", bytes_of(header) + bytes_of<uint32_t>({128000, 70000, 5}));
  const auto wide = open_token_file(import({path("a.bin")}, "c.h5"));
  EXPECT_THAT(ids_of(*wide), ElementsAre(128000, 70000, 5));
  EXPECT_EQ(wide->info().vocabulary_size, 128256);
}

std::string megatron_index(uint8_t type, const std::vector<int32_t>& lengths, const std::vector<int64_t>& pointers,
                           const std::vector<int64_t>& documents) {
  return std::string("MMIDIDX\0\0", 9) + bytes_of<uint64_t>({1}) + static_cast<char>(type) +
         bytes_of<uint64_t>({lengths.size(), documents.size()}) + bytes_of(lengths) + bytes_of(pointers) +
         bytes_of(documents);
}

TEST_F(Import, MegatronTokens) {
  // Three sequences, the first two of one document.
  write("m.bin", bytes_of<uint16_t>({1, 2, 3, 4, 5, 6}));
  write("m.idx", megatron_index(8, {2, 1, 3}, {0, 4, 6}, {0, 2, 3}));
  const auto file = open_token_file(import({path("m.idx"), "--vocab-size", "7"}, "m.h5"));
  EXPECT_THAT(ids_of(*file), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(file->documents(), ElementsAre(0, 3, 6));
  EXPECT_EQ(file->info().eos_id, -1);
  write("w.bin", bytes_of<int32_t>({70000, 2, 3}));
  write("w.idx", megatron_index(4, {1, 2}, {0, 4}, {0, 1, 2}));
  const auto wide = open_token_file(import({path("w.bin"), "--vocab-size", "100000"}, "w.h5"));
  EXPECT_THAT(ids_of(*wide), ElementsAre(70000, 2, 3));
  EXPECT_THAT(wide->documents(), ElementsAre(0, 1, 3));

  const auto refused = [&](const std::string& index, const std::string& what) {
    write("m.idx", index);
    expect_error(65, what, {"import", path("m.bin"), "--vocab-size", "7", "--output", path("x.h5")});
  };
  const std::string good = megatron_index(8, {2, 1, 3}, {0, 4, 6}, {0, 2, 3});
  refused(good + "x", "tells of 3 sequences and 3 documents");
  refused("X" + good.substr(1), "does not begin with MMIDIDX");
  refused(megatron_index(7, {2, 1, 3}, {0, 4, 6}, {0, 2, 3}), "ids of type 7");
  refused(megatron_index(8, {2, -1, 3}, {0, 4, 2}, {0, 2, 3}), "sequence 1 has the length -1");
  refused(megatron_index(8, {2, 1, 3}, {0, 2, 6}, {0, 2, 3}), "sequence 1 begins at byte 2");
  refused(megatron_index(8, {2, 1, 3}, {0, 4, 6}, {0, 3, 2}), "document 2 begins at sequence 2");
  refused(megatron_index(8, {2, 1, 3}, {0, 4, 6}, {0, 4, 3}), "document 1 begins at sequence 4");
  refused(megatron_index(8, {2, 1, 3}, {0, 4, 6}, {0, 2}), "the last document does not end the file");
  refused(megatron_index(8, {2, 1, 4}, {0, 4, 6}, {0, 2, 3}), "tells of 7 tokens");
  std::string huge = good;
  const uint64_t many = uint64_t{1} << 61;
  std::memcpy(huge.data() + 18, &many, 8);
  refused(huge, "sequences");
}

}  // namespace
}  // namespace llmtrain
