// Attacks: each damaged file with the valid one that it was made from.

#include "hf/weights/safetensors.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "harness/peak_memory.hpp"
#include "hf/convert.hpp"
#include "hf/files.hpp"

namespace llmtrain {
namespace {

using test::peak_memory;
using test::safetensors_bytes;
using test::ScratchFolder;
using test::with_sanitizer;
using testing::ElementsAre;
using testing::HasSubstr;

class Safetensors : public testing::Test {
 protected:
  std::string read(const std::string& bytes) {
    const std::string path = folder_.write("x.safetensors", bytes);
    header_ = {};
    return test::verdict(ExitCode::bad_content,
                         [&] { header_ = read_safetensors_header(FileHandle::open_to_read(path)); });
  }
  ScratchFolder folder_{test::unique_name("safetensors")};
  SafetensorsHeader header_;
};

const std::string two = R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                        R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[24,28]}})";

TEST_F(Safetensors, ReadsASoundFile) {
  ASSERT_EQ(read(safetensors_bytes(two, 28)), "accepted");
  ASSERT_EQ(header_.tensors.size(), 2u);
  EXPECT_EQ(header_.tensors[0].name, "a");
  EXPECT_EQ(header_.tensors[0].type, StoredType::F32);
  EXPECT_THAT(header_.tensors[0].shape, ElementsAre(2, 3));
  const auto begin = static_cast<int64_t>(8 + two.size());
  EXPECT_EQ(header_.tensors[0].begin, begin);
  EXPECT_EQ(header_.tensors[1].begin, begin + 24);
  EXPECT_EQ(header_.tensors[1].end, begin + 28);
  // Padding, metadata, any order of names, scalars, empty tensors and an empty file are sound too.
  EXPECT_EQ(read(safetensors_bytes(two + "     ", 28)), "accepted");
  EXPECT_EQ(read(safetensors_bytes(R"({"__metadata__":{"format":"pt","n":"1"}})", 0)), "accepted");
  EXPECT_EQ(header_.metadata.at("format"), "pt");
  EXPECT_EQ(read(safetensors_bytes(R"({"z":{"data_offsets":[4,8],"shape":[],"dtype":"F32"},)"
                                   R"("e":{"dtype":"F32","shape":[0,9223372036854775807],"data_offsets":[4,4]},)"
                                   R"("y":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
                                   8)),
            "accepted");
  EXPECT_EQ(header_.tensors[1].numel(), 0);
  EXPECT_EQ(read(safetensors_bytes(R"({"a":{"dtype":"F4","shape":[3,2],"data_offsets":[0,3]}})", 3)), "accepted");
  EXPECT_EQ(read(safetensors_bytes("{}", 0)), "accepted");
}

TEST_F(Safetensors, RefusesDamagedLengths) {
  EXPECT_THAT(read(""), HasSubstr("it has 0 bytes"));
  EXPECT_THAT(read("1234567"), HasSubstr("it has 7 bytes"));
  EXPECT_THAT(read(safetensors_bytes(two, 28, two.size() + 100)), HasSubstr("it is cut off or damaged"));
  EXPECT_THAT(read(safetensors_bytes(two, 28, 100'000'001)), HasSubstr("at most 100000000 are allowed"));
  EXPECT_THAT(read(safetensors_bytes(two, 28, UINT64_MAX)), HasSubstr("at most 100000000"));
  EXPECT_THAT(read(safetensors_bytes(two, 28, UINT64_MAX - 7)), HasSubstr("at most 100000000"));
  EXPECT_THAT(read(safetensors_bytes(two, 28, 0)), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(read(safetensors_bytes(two, 28, two.size() - 1)), HasSubstr("not valid JSON"));
  EXPECT_THAT(read(safetensors_bytes(" " + two, 28)), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(read("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n"), HasSubstr("Git LFS pointer"));
}

TEST_F(Safetensors, RefusesDamagedHeaders) {
  const std::map<std::string, std::string> headers = {
      {"[1]", "does not begin with '{'"},
      {"{\"a\":", "not valid JSON"},
      {two + "x", "not valid JSON"},
      {R"({"a":5})", "not an object"},
      {R"({"a":[5]})", "not an object"},
      {R"({"a":{"dtype":"F32","shape":[1]}})", "dtype, shape and data_offsets are needed"},
      {R"({"a":{"shape":[1],"data_offsets":[0,4]}})", "dtype, shape and data_offsets are needed"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"extra":1}})", "no such key: 'extra'"},
      {R"({"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", "unknown dtype 'F33'"},
      {R"({"a":{"dtype":7,"shape":[1],"data_offsets":[0,4]}})", "unknown dtype"},
      {R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})", "must be lists"},
      {R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", "a list here"},
      {R"({"a":{"dtype":["F32"],"shape":[1],"data_offsets":[0,4]}})", "a list here"},
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "not a size"},
      {R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", "not a size"},
      {R"({"a":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}})", "not a size"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", "must be two numbers"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", "must be two numbers"},
      {R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})", "more than 8 dimensions"},
      {R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "dtype twice"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
       "tensor 'a' twice"},
      {R"({"__metadata__":{"a":"1"},"__metadata__":{"b":"1"}})", "__metadata__ twice"},
      {R"({"__metadata__":{"a":"1","a":"2"}})", "'a' twice"},
      {R"({"__metadata__":{"a":1}})", "is not a text"},
      {R"({"__metadata__":{"a":{}}})", "an object here"},
      {"{\"a\xFF\":1}", "not valid JSON"},
  };
  for (const auto& [header, message] : headers) {
    EXPECT_THAT(read(safetensors_bytes(header, 4)), HasSubstr(message)) << header;
  }
  EXPECT_THAT(read(safetensors_bytes(std::string(1, '{') + "\"a\":" + std::string(5000, '['), 4)),
              HasSubstr("not an object"));
}

TEST_F(Safetensors, RefusesPlacesThatDoNotFitTheFile) {
  const auto one = [](const std::string& type, const std::string& shape, const std::string& offsets) {
    return R"({"a":{"dtype":")" + type + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  EXPECT_EQ(read(safetensors_bytes(one("F32", "[1]", "[0,4]"), 4)), "accepted");
  EXPECT_THAT(read(safetensors_bytes(one("F32", "[1]", "[0,4]"), 3)), HasSubstr("cut off or damaged"));
  EXPECT_THAT(read(safetensors_bytes(one("F32", "[1]", "[0,4]"), 5)), HasSubstr("1 bytes follow the last tensor"));
  EXPECT_THAT(read(safetensors_bytes("{}", 5)), HasSubstr("5 bytes follow"));
  EXPECT_THAT(read(safetensors_bytes(one("F32", "[1]", "[1,5]"), 5)), HasSubstr("overlap or leave a hole"));
  EXPECT_THAT(read(safetensors_bytes(one("F32", "[1]", "[4,0]"), 4)), HasSubstr("overlap or leave a hole"));
  EXPECT_THAT(read(safetensors_bytes(one("F32", "[2]", "[0,4]"), 4)), HasSubstr("does not need 4 bytes"));
  EXPECT_THAT(read(safetensors_bytes(one("F16", "[1]", "[0,4]"), 4)), HasSubstr("does not need 4 bytes"));
  EXPECT_THAT(read(safetensors_bytes(one("F4", "[3]", "[0,1]"), 1)), HasSubstr("does not need 1 bytes"));
  // Products that wrap: to 0, to the right number of bytes, in the last factor, in the width of an element.
  EXPECT_THAT(read(safetensors_bytes(one("F32", "[4294967296,4294967296]", "[0,0]"), 0)), HasSubstr("does not need 0"));
  EXPECT_THAT(read(safetensors_bytes(one("F32", "[4611686018427387905]", "[0,4]"), 4)), HasSubstr("does not need 4"));
  EXPECT_THAT(read(safetensors_bytes(one("U8", "[3,6148914691236517206]", "[0,2]"), 2)), HasSubstr("does not need 2"));
  EXPECT_THAT(read(safetensors_bytes(one("F32", "[1]", "[0,18446744073709551615]"), 4)), HasSubstr("not a size"));
  EXPECT_THAT(read(safetensors_bytes(one("F32", "[18446744073709551616]", "[0,4]"), 4)), HasSubstr("not a size"));
  EXPECT_THAT(read(safetensors_bytes(one("F32", "[1]", "[9223372036854775807,9223372036854775807]"), 4)),
              HasSubstr("overlap or leave a hole"));
  // Two tensors: overlapping, with a hole, in the wrong order.
  const auto pair = [](const std::string& first, const std::string& second) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + first +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}";
  };
  EXPECT_EQ(read(safetensors_bytes(pair("[4,8]", "[0,4]"), 8)), "accepted");
  EXPECT_THAT(read(safetensors_bytes(pair("[0,4]", "[0,4]"), 4)), HasSubstr("overlap"));
  EXPECT_THAT(read(safetensors_bytes(pair("[0,4]", "[2,6]"), 6)), HasSubstr("overlap"));
  EXPECT_THAT(read(safetensors_bytes(pair("[0,4]", "[5,9]"), 9)), HasSubstr("hole"));
}

TEST_F(Safetensors, BombsTakeNoMemory) {
  const int64_t before = peak_memory();
  std::string header = R"({"a":{"dtype":"F64","shape":[1000000000000],"data_offsets":[0,8000000000000]}})";
  EXPECT_THAT(read(safetensors_bytes(header, 8)), HasSubstr("cut off or damaged"));
  header = "{";
  for (int i = 0; i < 300000; ++i)
    header += fmt::format("{}\"t{}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", i == 0 ? "" : ",", i);
  EXPECT_EQ(read(safetensors_bytes(header + "}", 0)), "accepted");
  EXPECT_EQ(header_.tensors.size(), 300000u);
  EXPECT_LT(peak_memory() - before, with_sanitizer(int64_t{224} << 20));
}

TEST_F(Safetensors, WritesWhatTheReferenceImplementationWrites) {
  // Made by the Python package: save_file({"b": [[1, 2]], "a": [3]}, metadata={"format": "pt"}) in fp32.
  const std::string header = R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                             R"("b":{"dtype":"F32","shape":[1,2],"data_offsets":[4,12]}})";
  SafetensorsWriter writer(folder_.at("written.safetensors"),
                           {{"b", StoredType::F32, {1, 2}, 0, 0}, {"a", StoredType::F32, {1}, 0, 0}},
                           {{"format", "pt"}});
  const float a[] = {3}, b[] = {1, 2};
  writer.write("b", 0, b, 2);
  writer.write("a", 0, a, 1);
  writer.finish();
  std::string expected = safetensors_bytes(header + std::string((8 - header.size() % 8) % 8, ' '), 0);
  expected.append(reinterpret_cast<const char*>(a), 4).append(reinterpret_cast<const char*>(b), 8);
  EXPECT_EQ(folder_.read("written.safetensors"), expected);
}

TEST_F(Safetensors, WhatIsWrittenInPiecesIsRead) {
  SafetensorsWriter writer(folder_.at("w.safetensors"),
                           {{"half", StoredType::F16, {5}, 0, 0},
                            {"brain", StoredType::BF16, {5}, 0, 0},
                            {"full", StoredType::F32, {5}, 0, 0}},
                           {});
  const float values[] = {1, -2, 0.5f, 3.140625f, -65504};
  for (const char* name : {"full", "brain", "half"}) {
    writer.write(name, 3, values + 3, 2);
    writer.write(name, 0, values, 3);
  }
  const float infinite[] = {1e6f};
  EXPECT_THROW(writer.write("half", 0, infinite, 1), UserError);
  writer.finish();
  const FileHandle file = FileHandle::open_to_read(folder_.at("w.safetensors"));
  const SafetensorsHeader header = read_safetensors_header(file);
  ASSERT_EQ(header.tensors.size(), 3u);
  EXPECT_EQ(header.tensors[0].name, "full");  // wider types first
  for (const StoredTensor& t : header.tensors) {
    std::string bytes(static_cast<size_t>(t.end - t.begin), '\0');
    file.read(t.begin, t.end - t.begin, bytes.data());
    std::vector<float> found(5);
    to_float(t.type, bytes.data(), 5, found.data());
    const float last = t.type == StoredType::BF16 ? -65536.0f : -65504.0f;
    EXPECT_THAT(found, ElementsAre(1, -2, 0.5f, 3.140625f, last)) << t.name;
  }
}

}  // namespace
}  // namespace llmtrain
