// Hostile files, each with its twin: the nearest valid file, which must be accepted. Every hostile file ends with a
// message that names it, in bounded memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compressed_data.hpp"
#include "data/dataset.hpp"
#include "data/files/jsonl.hpp"
#include "data_files.hpp"
#include "harness/peak_memory.hpp"
#include "parallel/local_communicator.hpp"

namespace llmtrain {
namespace {

using test::Folder;
using test::gzipped;
using test::peak_memory;
using test::refusal;
using test::with_sanitizer;
using test::zstd_packed;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

std::string repeated(std::string_view text, size_t times) {
  std::string all;
  all.reserve(text.size() * times);
  for (size_t i = 0; i < times; ++i) all += text;
  return all;
}

std::string row(const std::string& text) { return "{\"text\":\"" + text + "\"}\n"; }
std::string ids(const std::string& list) { return "{\"input_ids\":[" + list + "]}\n"; }
std::string nested(size_t depth, char open, char close) {
  const std::string inner = open == '{' ? "{\"a\":" : std::string(1, open);
  return "{\"text\":\"x\",\"deep\":" + repeated(inner, depth) + "0" + std::string(depth, close) + "}\n";
}
std::string keys(size_t count) {
  std::string object = "{\"text\":\"x\"";
  for (size_t k = 1; k < count; ++k) object += ",\"k" + std::to_string(k) + "\":0";
  return object + "}\n";
}

struct HostileFile {
  const char* name;    ///< name of the test
  const char* ending;  ///< name of the file
  std::string (*hostile)();
  std::string (*twin)();
  const char* message;  ///< expected text after the name of the file
};

std::ostream& operator<<(std::ostream& out, const HostileFile& file) { return out << file.name; }

const std::string good = row("good");

const HostileFile files[] = {
    {"depth_bomb_of_lists", ".jsonl", [] { return good + nested(1 << 20, '[', ']'); },
     [] { return good + nested(63, '[', ']'); }, ":2: byte 98: nested deeper than 64 levels"},
    {"depth_bomb_of_objects", ".jsonl", [] { return good + nested(1 << 18, '{', '}'); },
     [] { return good + nested(63, '{', '}'); }, ":2: byte 350: nested deeper than 64 levels"},
    {"depth_bomb_without_end", ".jsonl", [] { return good + std::string(1 << 20, '['); },
     [] { return good + row("["); }, ":2: byte 16: a row must be a JSON object"},
    {"too_many_keys", ".jsonl", [] { return good + keys(max_json_keys + 1); },
     [] { return good + keys(max_json_keys); }, ":2: byte 8917: an object with more than 1000 keys"},
    {"key_given_twice", ".jsonl", [] { return std::string("{\"text\":\"a\",\"text\":\"b\"}\n"); },
     [] { return std::string("{\"text\":\"a\",\"Text\":\"b\"}\n"); }, ":1: byte 17: key 'text' twice"},
    {"line_of_17_mib", ".jsonl", [] { return good + row(std::string(17 << 20, 'x')); },
     [] { return good + row(std::string(15 << 20, 'x')); },
     ":2: byte 16: the row has 17825803 bytes, more than the 16777216 of data.row_limit"},
    {"number_of_many_digits", ".jsonl", [] { return ids("1" + std::string(1 << 20, '0')); },
     [] { return ids("1000000"); }, ":1: byte 1048590: not valid JSON"},
    {"number_beyond_64_bits", ".jsonl", [] { return ids("18446744073709551616"); }, [] { return ids("18446"); },
     ":1: byte 34: "},
    {"id_below_zero", ".jsonl", [] { return ids("1,-1"); }, [] { return ids("1,0"); },
     ":1: byte 18: input_ids[1] = -1 must be a token id from 0 to 2147483646"},
    {"id_at_the_limit", ".jsonl", [] { return ids("2147483647"); }, [] { return ids("70000"); },
     ":1: byte 24: input_ids[0] = 2147483647 must be a token id from 0 to 2147483646"},
    {"id_with_a_fraction", ".jsonl", [] { return ids("1,2.0"); }, [] { return ids("1,2"); },
     ":1: byte 19: 2.0 is not an integer"},
    {"ids_in_lists", ".jsonl", [] { return ids("[1],[2]"); }, [] { return ids("1,2"); },
     ":1: byte 14: input_ids must be a flat list"},
    {"fewer_labels", ".jsonl", [] { return std::string("{\"input_ids\":[1,2],\"labels\":[1]}\n"); },
     [] { return std::string("{\"input_ids\":[1,2],\"labels\":[-100,2]}\n"); }, ":1: byte 0: 1 labels for 2 input_ids"},
    {"lone_surrogate", ".jsonl", [] { return good + row("\\udc00"); }, [] { return good + row("\\ud800\\udc00"); },
     "not valid JSON: a lone surrogate"},
    {"nul_in_a_row", ".jsonl", [] { return good + row(std::string(1, '\0')); }, [] { return good + row("\\u0000"); },
     ":2: byte 25: a NUL"},
    {"row_cut_short", ".jsonl", [] { return good + "{\"text\":\"en"; }, [] { return good + "{\"text\":\"en\"}"; },
     ":2: byte 27: not valid JSON: the line ends too early"},
    {"latin_1_in_a_row", ".jsonl", [] { return good + row("caf\xE9"); }, [] { return good + row("caf\xC3\xA9"); },
     "not valid JSON: bytes that are not UTF-8"},
    {"two_rows_on_a_line", ".jsonl", [] { return std::string("{\"text\":\"a\"}{\"text\":\"b\"}\n"); },
     [] { return std::string("{\"text\":\"a\"}\n{\"text\":\"b\"}\n"); }, ":1: byte 12: not valid JSON"},
    {"text_that_is_a_list", ".jsonl", [] { return std::string("{\"text\":[\"a\"]}\n"); }, [] { return row("a"); },
     ":1: byte 8: 'text' must be a text"},
    {"json_that_is_one_list", ".json", [] { return std::string(" [{\"text\":\"a\"}]\n"); },
     [] { return std::string("text that is in a file named so\n"); }, ": byte 1: a JSON array cannot be read as text"},
    {"json_that_is_one_object", ".json", [] { return std::string("{\"rows\":[]}"); },
     [] { return std::string("text that is in a file named so\n"); }, ": byte 0: a JSON object cannot be read as text"},
    {"overlong_utf8", ".txt", [] { return std::string("line\n\xC0\xAF"); },
     [] { return std::string("line\n\xC2\xAF"); }, ":2: byte 5: 0xc0 is not part of UTF-8"},
    {"surrogate_in_utf8", ".txt", [] { return std::string("\xED\xA0\x80"); },
     [] { return std::string("\xED\x9F\xBF"); }, ":1: byte 0: 0xed is not part of UTF-8"},
    {"character_cut_by_the_end", ".txt", [] { return std::string("a\xE2\x82"); },
     [] { return std::string("a\xE2\x82\xAC"); }, ":1: byte 1: 0xe2 is not part of UTF-8"},
    {"utf_16", ".txt",
     [] {
       return std::string(
           "\xFF\xFE"
           "a\0",
           4);
     },
     [] {
       return std::string(
           "\xEF\xBB\xBF"
           "a");
     },
     ":1: byte 0: 0xff is not part of UTF-8 text (it looks like UTF-16"},
    {"broken_character_far_inside", ".txt", [] { return repeated("word\n", 1 << 19) + "\x80"; },
     [] { return repeated("word\n", 1 << 19) + "\x7F"; }, ":524289: byte 2621440: 0x80 is not part of UTF-8"},
    {"gzip_cut_short", ".txt.gz", [] { return gzipped("text").substr(0, 20); }, [] { return gzipped("text"); },
     ": compressed byte 20: the file ends within"},
    {"zstd_cut_short", ".txt.zst", [] { return zstd_packed("text").substr(0, 10); }, [] { return zstd_packed("text"); },
     ": compressed byte 10: the file ends within"},
    {"gzip_with_a_wrong_checksum", ".txt.gz",
     [] {
       std::string file = gzipped("text");
       file[file.size() - 5] ^= 1;
       return file;
     },
     [] { return gzipped("text"); }, ": compressed byte "},
    {"gzip_that_is_text", ".txt.gz", [] { return std::string("text"); }, [] { return gzipped("text"); },
     ": compressed byte "},
    {"gzip_bomb", ".txt.gz", [] { return gzipped(std::string(64 << 20, '\0')); },
     [] { return gzipped(std::string(1 << 20, '\0')); }, "it unpacks to more than 33554432 bytes"},
    {"zstd_bomb", ".txt.zst", [] { return zstd_packed(std::string(64 << 20, '\0')); },
     [] { return zstd_packed(std::string(1 << 20, '\0')); }, "it unpacks to more than 33554432 bytes"},
    // Frame headers with a window of 2^41 bytes and of 2^20.
    {"zstd_with_a_huge_window", ".txt.zst",
     [] {
       return std::string(
           "\x28\xB5\x2F\xFD\x00\xF8\x09\x00\x00"
           "a",
           10);
     },
     [] {
       return std::string(
           "\x28\xB5\x2F\xFD\x00\x50\x09\x00\x00"
           "a",
           10);
     },
     ": compressed byte "},
    {"rows_that_are_empty", ".jsonl", [] { return good + row("") + row(""); },
     [] { return good + good + row("") + row(""); }, ": 2 of 3 rows are empty"},
    {"archive", ".tar.gz", [] { return gzipped("text"); }, nullptr, ": an archive"},
    {"parquet", ".parquet", [] { return std::string("text"); }, nullptr, ": its name says that it is Parquet"},
};

class Hostile : public testing::TestWithParam<HostileFile> {
 protected:
  std::string verdict(const std::string& name, const std::string& content) {
    SampleRules config;
    config.cache = folder_ / "cache";
    config.validation_fraction = 0;
    config.tokenizer = "bytes";
    config.packing = DataConfig::Packing::none;
    config.unpacked_limit = 32 << 20;
    config.row_limit = 16 << 20;
    config.train = {folder_.file(name, content)};
    BatchConfig batch;
    batch.sequence_length = 8;
    batch.global = 1;
    return refusal([&] { open_dataset(config, batch, *make_local_communicator(), nullptr); });
  }

  Folder folder_;
};

TEST_P(Hostile, IsRefusedAndItsTwinIsTaken) {
  const HostileFile& file = GetParam();
  const std::string name = std::string(file.name) + file.ending, content = file.hostile();
  const int64_t before = peak_memory();
  EXPECT_THAT(verdict(name, content), AllOf(StartsWith("65 "), HasSubstr(name), HasSubstr(file.message)));
  EXPECT_LT(peak_memory() - before, with_sanitizer(int64_t{160} << 20)) << "bytes more at the peak";
  if (file.twin == nullptr) return;
  EXPECT_EQ(verdict("right_" + name, file.twin()), "nothing was thrown");
}

INSTANTIATE_TEST_SUITE_P(Files, Hostile, testing::ValuesIn(files),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST(HostileText, WithoutAPlaceToCut) {
  const Folder folder;
  SampleRules config;
  config.cache = folder / "cache";
  config.validation_fraction = 0;
  config.tokenizer = "tests/reference/tokenizers/synthetic/gpt2.json";
  BatchConfig batch;
  batch.sequence_length = 8;
  batch.global = 1;
  const auto verdict = [&](const std::string& path) {
    config.train = {path};
    return refusal([&] { open_dataset(config, batch, *make_local_communicator(), nullptr); });
  };
  const std::string path = folder.file("zeros.txt", "a text\n");
  std::filesystem::resize_file(path, 80 << 20);  // sparse: NULs to the end
  EXPECT_THAT(verdict(path),
              AllOf(StartsWith("65 "), HasSubstr("zeros.txt:2: byte "), HasSubstr("have no position to cut")));
  EXPECT_EQ(verdict(folder.file("words.txt", "a text\n" + repeated("word ", 1 << 19))), "nothing was thrown");
}

}  // namespace
}  // namespace llmtrain
