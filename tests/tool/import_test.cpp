// llmtool import: token files of other trainers are imported completely, damaged ones are refused. (Models:
// tests/decks.)

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>

#include "data/files/token_file.hpp"
#include "tool/tool_program.hpp"

namespace llmtrain {
namespace {

using test::llmtool;
using testing::ElementsAre;
using testing::HasSubstr;

class Import : public test::ToolTest {
 protected:
  void write(const std::string& name, const std::string& bytes) const { file(name, bytes); }
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

/// A llama2.c checkpoint of dim 8, hidden_dim 12, 2 layers, 2 heads, 1 key-value head, vocabulary 16, not tied.
struct Llama2c {
  std::vector<std::vector<float>> norm, matrix;

  Llama2c() {
    std::mt19937 random(5);
    const auto values = [&](size_t n) {
      std::vector<float> all(n);
      for (float& value : all) value = static_cast<float>(static_cast<int>(random() % 255) - 127) / 64;
      return all;
    };
    for (int i = 0; i < 5; ++i) norm.push_back(values(8));
    matrix.push_back(values(16 * 8));
    for (const size_t elements : {64, 32, 32, 64, 96, 96, 96}) {
      for (int layer = 0; layer < 2; ++layer) matrix.push_back(values(elements));
    }
    matrix.push_back(values(16 * 8));
  }

  std::string version0() const {
    std::string bytes = bytes_of<int32_t>({8, 12, 2, 2, 1, -16, 32}) + bytes_of(matrix[0]);
    for (size_t i = 0; i < 2; ++i) bytes += bytes_of(norm[i]);
    for (size_t i = 1; i < 9; ++i) bytes += bytes_of(matrix[i]);
    for (size_t i = 2; i < 4; ++i) bytes += bytes_of(norm[i]);
    for (size_t i = 9; i < 15; ++i) bytes += bytes_of(matrix[i]);
    return bytes + bytes_of(norm[4]) + std::string(4 * 2 * 32 * 2, 'r') + bytes_of(matrix[15]);
  }
};

TEST_F(Import, Llama2cHoldsItsModel) {
  const Llama2c model;
  write("model.bin", model.version0());
  const std::string weights = test::read_file(import({path("model.bin")}, "model") + "/model.safetensors");
  for (const auto& values : {model.norm[4], model.matrix[0], model.matrix[15]}) {  // as they are, whole
    EXPECT_NE(weights.find(bytes_of(values)), std::string::npos);
  }
  EXPECT_EQ(weights.find(bytes_of(model.matrix[1])), std::string::npos);  // rows of queries change their order
}

TEST_F(Import, DamagedLlama2cIsRefused) {
  Llama2c model;
  const auto refused = [&](const std::string& bytes, const std::string& what) {
    write("model.bin", bytes);
    expect_error(65, what, {"import", path("model.bin"), "--format", "llama2c", "--output", path("x")});
  };
  const std::string good = model.version0();
  refused(good.substr(0, 20), "too short");
  refused(good.substr(0, good.size() - 4), "bytes, but its header (dim 8, 2 layers, vocabulary 16) declares");
  refused(bytes_of<int32_t>({0x616b3432, 2, 8, 12, 2, 2, 1, 16, 32}), "version 2; only version 0 is supported");
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
  expect(64, "the end of documents is unknown", {"--vocab-size", "10"});
  expect(65, "byte 4: token 2 has the id 9, outside the vocabulary of 9; give the --tokenizer",
         {"--vocab-size", "9", "--eos-id", "8"});
  write("train.bin", "abc");
  expect(65, "not a whole number of uint16", {"--vocab-size", "10", "--eos-id", "9"});
  expect_error(64, "give --format", {"import", path("train.bin"), "--output", path("x.h5")});
}

TEST_F(Import, LlmCTokens) {
  std::vector<int32_t> header(256);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = 5;
  const std::string ids = bytes_of<uint16_t>({50256, 11, 12, 50256, 13});
  write("a.bin", bytes_of(header) + ids);
  const auto file = open_token_file(import({path("a.bin")}, "a.h5"));
  EXPECT_THAT(ids_of(*file), ElementsAre(11, 12, 50256, 13, 50256));
  EXPECT_THAT(file->documents(), ElementsAre(0, 3, 5));
  EXPECT_EQ(file->info().vocabulary_size, 50257);
  header[2] = 6;
  write("a.bin", bytes_of(header) + ids);
  expect_error(65, "declares 6 tokens", {"import", path("a.bin"), "--output", path("b.h5")});
  header[2] = 5;
  header[1] = 2;
  write("a.bin", bytes_of(header) + ids);
  expect_error(65, "version 2 is not supported", {"import", path("a.bin"), "--output", path("b.h5")});
  header = {20240801, 7, 3};
  header.resize(256);
  write("a.bin", bytes_of(header) + bytes_of<uint32_t>({128000, 70000, 5}));
  const auto wide = open_token_file(import({path("a.bin")}, "c.h5"));
  EXPECT_THAT(ids_of(*wide), ElementsAre(128000, 70000, 5, 128001)) << "<|begin_of_text|> is not an end: it stays";
  EXPECT_EQ(wide->info().vocabulary_size, 128256);
}

// llm.c's dev/data writes [delimiter, document, delimiter, document, ...] into shards of one size.
TEST_F(Import, LlmCDocumentsBeginWithTheDelimiter) {
  const auto shard = [&](const std::string& name, const std::vector<uint16_t>& ids) {
    std::vector<int32_t> header = {20240520, 1, static_cast<int32_t>(ids.size())};
    header.resize(256);
    write(name, bytes_of(header) + bytes_of(ids));
    return path(name);
  };
  const auto documents = [&](const std::vector<std::string>& arguments) {
    const auto file = open_token_file(import(arguments, "x.h5"));
    const std::vector<int32_t> ids = ids_of(*file);
    std::vector<std::vector<int32_t>> all;
    for (size_t d = 0; d + 1 < file->documents().size(); ++d) {
      all.emplace_back(ids.begin() + static_cast<std::ptrdiff_t>(file->documents()[d]),
                       ids.begin() + static_cast<std::ptrdiff_t>(file->documents()[d + 1]));
    }
    return all;
  };
  constexpr uint16_t d = 50256;
  const std::string a = shard("a.bin", {d, 11, 12, d, d, 13, d}), b = shard("b.bin", {14, 15, d, 16}),
                    c = shard("c.bin", {d, 17});
  using Documents = std::vector<std::vector<int32_t>>;
  EXPECT_EQ(documents({a}), (Documents{{11, 12, d}, {13, d}})) << "without the empty ones";
  EXPECT_EQ(open_token_file(path("x.h5"))->info().skipped_documents, 2);
  EXPECT_EQ(documents({b}), (Documents{{14, 15, d}, {16, d}})) << "the first one began in another file";
  EXPECT_EQ(documents({a, b, c}), (Documents{{11, 12, d}, {13, d}, {14, 15, d}, {16, d}, {17, d}}));
  EXPECT_EQ(documents({b, b}), (Documents{{14, 15, d}, {16, 14, 15, d}, {16, d}})) << "over the end of a file";
  EXPECT_EQ(documents({a, "--vocab-size", "50257", "--eos-id", "13"}), (Documents{{d, 11, 12, d, d, 13}, {d, 13}}));
  expect_error(65, "only the delimiter 50256", {"import", shard("e.bin", {d, d}), "--output", path("y.h5")});
  expect_error(64, "give one file", {"import", a, b, "--format", "megatron", "--output", path("y.h5")});
  // Much more than one read.
  std::vector<uint16_t> many;
  for (int i = 0; i < 1'500'000; ++i) many.push_back(i % 1000 == 0 ? d : static_cast<uint16_t>(i % 1000));
  const Documents long_ones = documents({shard("f.bin", many)});
  ASSERT_EQ(long_ones.size(), 1500U);
  for (const std::vector<int32_t>& one : long_ones) {
    ASSERT_EQ(one.size(), 1000U);
    ASSERT_TRUE(one.front() == 1 && one[998] == 999 && one.back() == d);
  }
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
  refused(good + "x", "declares 3 sequences and 3 documents");
  refused("X" + good.substr(1), "does not begin with MMIDIDX");
  refused(megatron_index(7, {2, 1, 3}, {0, 4, 6}, {0, 2, 3}), "ids of type 7");
  refused(megatron_index(8, {2, -1, 3}, {0, 4, 2}, {0, 2, 3}), "sequence 1 has the invalid length -1");
  refused(megatron_index(8, {2, 1, 3}, {0, 2, 6}, {0, 2, 3}), "sequence 1 begins at byte 2");
  refused(megatron_index(8, {2, 1, 3}, {0, 4, 6}, {0, 3, 2}), "document 2 begins at the invalid sequence 2");
  refused(megatron_index(8, {2, 1, 3}, {0, 4, 6}, {0, 4, 3}), "document 1 begins at the invalid sequence 4");
  refused(megatron_index(8, {2, 1, 3}, {0, 4, 6}, {0, 2}), "the last document does not end with the file");
  refused(megatron_index(8, {2, 1, 4}, {0, 4, 6}, {0, 2, 3}), "declares 7 tokens");
  std::string huge = good;
  const uint64_t many = uint64_t{1} << 61;
  std::memcpy(huge.data() + 18, &many, 8);
  refused(huge, "sequences");
}

}  // namespace
}  // namespace llmtrain
