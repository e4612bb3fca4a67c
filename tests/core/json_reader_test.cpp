#include "core/files/json_reader.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "core/error.hpp"

namespace llmtrain {
namespace {

using testing::HasSubstr;

/// Message of the refusal, or "accepted".
std::string verdict(const std::string& text, const JsonLimits& limits = {}) {
  try {
    parse_json(text, "file.json", limits);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_content);
    return error.what();
  }
  return "accepted";
}

std::string nested(int depth) {
  return std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']');
}

TEST(JsonReader, ReadsWhatTheLibraryReads) {
  const std::string text = R"({"b": [1, -2, 2.5, true, null, {"c": []}], "a": "x\u00e4\n", "d": 18446744073709551615})";
  EXPECT_EQ(parse_json(text, "file.json"), nlohmann::json::parse(text));
  for (const char* scalar : {"1", "\"x\"", "null", " [] \n"}) {
    EXPECT_EQ(parse_json(scalar, "file.json"), nlohmann::json::parse(scalar));
  }
}

/// A reader of rows keeps the digits of integers that the library reads as floats; numbers are those of the library.
TEST(JsonReader, IntegersBeyond64BitsKeepTheirDigits) {
  const std::string text =
      R"({"n":[-9223372036854775809,18446744073709551616,340282366920938463463374607431768211455],)"
      R"("u":18446744073709551615,"f":1.5e+300,"s":{")"
      "\xC3\xA9"
      R"(\"":"\u0001","e":[],"o":{},"t":[true,null,-1,0.5]}})";
  const nlohmann::ordered_json row = parse_ordered_json(text, {}, 10);
  EXPECT_EQ(json_text(row), text);
  EXPECT_NE(nlohmann::ordered_json::parse(text).dump(), text);
  EXPECT_TRUE(is_big_integer(row["n"][0]));
  EXPECT_EQ(big_integer_text(row["n"][0]), "-9223372036854775809");
  EXPECT_FALSE(is_big_integer(row["u"]) || is_big_integer(row["f"]));
  EXPECT_EQ(printable_value(row["n"][1]), "18446744073709551616");
  EXPECT_TRUE(parse_json(text, "file.json")["n"][0].is_number_float());
}

TEST(JsonReader, NamesLineAndByteOfWhatIsWrong) {
  EXPECT_EQ(verdict("{\"a\": 1,\n \"b\": tru}"), "file.json:2: byte 19: not valid JSON");
  EXPECT_THAT(verdict("{\"a\": 1,\n \"a\": 2}"),
              HasSubstr("file.json:2: byte 13: the key 'a' appears twice in one object"));
  EXPECT_THAT(verdict(""), HasSubstr("not valid JSON"));
  EXPECT_THAT(verdict("{} x"), HasSubstr("not valid JSON"));
  EXPECT_THAT(verdict("[1e999]"), HasSubstr("the number does not fit a double"));
}

TEST(JsonReader, RefusesWhatOthersTakeSilently) {
  EXPECT_THAT(verdict(std::string("{}\0{", 4)), HasSubstr("byte 3: a NUL"));
  EXPECT_THAT(verdict("\xEF\xBB\xBF{}"), HasSubstr("byte order mark"));
  EXPECT_THAT(verdict("[\"\xC3\x28\"]"), HasSubstr("not valid JSON"));
  EXPECT_THAT(verdict("[NaN]"), HasSubstr("not valid JSON"));
  EXPECT_THAT(verdict("[1] // comment"), HasSubstr("not valid JSON"));
  EXPECT_EQ(verdict("{\"a\": {\"b\": 1}, \"c\": {\"b\": 1}}"), "accepted");
  EXPECT_THAT(verdict("[{\"b\": {\"a\": 1, \"a\": 1}}]"), HasSubstr("the key 'a' appears twice"));
}

TEST(JsonReader, DepthIsBounded) {
  EXPECT_EQ(verdict(nested(max_json_depth)), "accepted");
  EXPECT_THAT(verdict(nested(max_json_depth + 1)), HasSubstr("byte 65: the document is nested deeper than 64 levels"));
  EXPECT_THAT(verdict(std::string(1000000, '[')), HasSubstr("nested deeper"));
}

TEST(JsonReader, SizeAndNumberOfValuesAreBounded) {
  EXPECT_EQ(verdict("[1,2,3]", {.bytes = 7}), "accepted");
  EXPECT_THAT(verdict("[1,2,3]", {.bytes = 6}), HasSubstr("the file has 7 bytes, and at most 6 are allowed"));
  EXPECT_EQ(verdict("{\"a\":[1]}", {.values = 4}), "accepted");
  EXPECT_THAT(verdict("{\"a\":[1]}", {.values = 3}), HasSubstr("the document has too many values"));
}

TEST(JsonReader, FilesAreBoundedBeforeTheyAreRead) {
  const std::string path = testing::TempDir() + "json_reader_test.json";
  std::ofstream(path) << "{\"a\": [1, 2]}";
  EXPECT_EQ(read_json(FileHandle::open_to_read(path)).at("a").size(), 2u);
  EXPECT_THROW(read_json(FileHandle::open_to_read(path), {.bytes = 5}), UserError);
  std::remove(path.c_str());
}

TEST(JsonReader, QuotedTextIsPrintableAndShort) {
  EXPECT_EQ(printable("a b"), "'a b'");
  EXPECT_EQ(printable("\x1b[2J\xff"), "'\\x1b[2J\\xff'");
  EXPECT_EQ(printable(std::string(101, 'x')), "'" + std::string(100, 'x') + "...'");
}

}  // namespace
}  // namespace llmtrain
