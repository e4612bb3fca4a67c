#include "data/files/jsonl.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/files/json_reader.hpp"
#include "data_files.hpp"

namespace llmtrain {
namespace {

using test::Folder;
using test::refusal;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string refusal_of(const std::string& line) {
  TokenRow row;
  return refusal([&] { parse_token_row(line, row); });
}

TEST(TokenRow, ReadsIdsAndLabels) {
  TokenRow row;
  parse_token_row(R"({"input_ids": [0, 5, 2147483646]})", row);
  EXPECT_THAT(row.ids, ElementsAre(0, 5, 2147483646));
  EXPECT_FALSE(row.has_labels);
  parse_token_row(R"( {"labels":[-100,6],"other":{"a":[1,{"b":null}],"c":"\u0000"},"input_ids":[5,6],"x":1.5e3} )",
                  row);
  EXPECT_THAT(row.ids, ElementsAre(5, 6));
  EXPECT_THAT(row.labels, ElementsAre(-100, 6));
  EXPECT_TRUE(row.has_labels);
  parse_token_row(R"({"input_ids":[]})", row);
  EXPECT_TRUE(row.ids.empty());
  EXPECT_FALSE(row.has_labels);
}

TEST(TokenRow, LeavesOutPadding) {
  TokenRow row;
  parse_token_row(R"({"attention_mask":[0,1.0,true,0,1,false],"input_ids":[9,1,2,9,3,9]})", row);
  EXPECT_THAT(row.ids, ElementsAre(1, 2, 3));
  EXPECT_FALSE(row.has_labels);
  EXPECT_EQ(row.padding, 3);
  // Labels of padding are ignored.
  parse_token_row(R"({"input_ids":[0,1,2],"labels":[7,-100,2],"attention_mask":[0,1,1]})", row);
  EXPECT_THAT(row.ids, ElementsAre(1, 2));
  EXPECT_THAT(row.labels, ElementsAre(-100, 2));
  parse_token_row(R"({"input_ids":[1,2],"attention_mask":[0,0]})", row);
  EXPECT_TRUE(row.ids.empty());
  parse_token_row(R"({"input_ids":[1,2]})", row);
  EXPECT_EQ(row.padding, 0) << "of this row alone";
}

/// As TRL's SFTTrainer builds labels of them; labels that stand beside them are the same.
TEST(TokenRow, MasksSayWhatIsTrained) {
  TokenRow row;
  parse_token_row(R"({"input_ids":[5,6,7,8],"completion_mask":[0,1,1,1],"assistant_masks":[1,1,false,1]})", row);
  EXPECT_TRUE(row.has_labels);
  EXPECT_THAT(row.labels, ElementsAre(-100, 6, -100, 8));
  parse_token_row(R"({"assistant_masks":[0,0,1],"input_ids":[5,6,7],"attention_mask":[0,1,1]})", row);
  EXPECT_THAT(row.ids, ElementsAre(6, 7));
  EXPECT_THAT(row.labels, ElementsAre(-100, 7));
  parse_token_row(R"({"input_ids":[5,6,7],"completion_mask":[0,0,1],"labels":[5,-100,7]})", row);
  EXPECT_THAT(row.labels, ElementsAre(-100, -100, 7)) << "the first token is never a target";
  parse_token_row(R"({"input_ids":[5,6],"completion_mask":null,"labels":null})", row);
  EXPECT_FALSE(row.has_labels);
}

TEST(TokenRow, RefusesWhatIsNoRow) {
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"", "not valid JSON"},
      {"nonsense", "not valid JSON"},
      {R"({"input_ids":[1,2)", "not valid JSON"},
      {R"({"input_ids":[1,2]} {})", "not valid JSON"},
      {R"({"input_ids":[1,2,]})", "not valid JSON"},
      {R"({"input_ids":[01]})", "not valid JSON"},
      {R"({"input_ids":[NaN]})", "not valid JSON"},
      {"{\"input_ids\":[1],\"a\":\"\xFF\"}", "not valid JSON"},
      {"[1,2]", "must be a JSON object"},
      {"3", "must be a JSON object"},
      {"null", "must be a JSON object"},
      {"{}", "no input_ids"},
      {R"({"text":"words"})", "no input_ids"},
      {R"({"a":{"input_ids":[1]}})", "no input_ids"},
      {R"({"input_ids":3})", "must be a list"},
      {R"({"input_ids":null})", "must be a list"},
      {R"({"input_ids":"1 2"})", "must be a list"},
      {R"({"input_ids":{"a":1}})", "must be a list"},
      {R"({"input_ids":[1,"2"]})", "must be a list"},
      {R"({"input_ids":[1,true]})", "must be a list"},
      {R"({"input_ids":[1,null]})", "must be a list"},
      {R"({"input_ids":[1,{}]})", "must be a list"},
      {R"({"input_ids":[[1]]})", "flat list"},
      {R"({"input_ids":[1.0]})", "not an integer"},
      {R"({"input_ids":[1e2]})", "not an integer"},
      {R"({"input_ids":[-1]})", "must be a token id"},
      {R"({"input_ids":[-100]})", "must be a token id"},
      {R"({"input_ids":[2147483647]})", "must be a token id"},
      {R"({"input_ids":[18446744073709551615]})", "must be a token id"},
      {R"({"input_ids":[99999999999999999999999]})", "not an integer"},
      {R"({"input_ids":[1],"labels":[1,1]})", "2 labels for 1"},
      {R"({"input_ids":[1,2],"labels":[1,3]})", "labels[1] is 3"},
      {R"({"input_ids":[1,2],"labels":[1,3],"attention_mask":[0,1]})", "labels[1] is 3"},
      {R"({"input_ids":[1,2],"attention_mask":[1]})", "1 entries of attention_mask for 2"},
      {R"({"input_ids":[1,2],"completion_mask":[1]})", "1 entries of completion_mask for 2 input_ids"},
      {R"({"input_ids":[1,2],"assistant_masks":[0,1,1]})", "3 entries of assistant_masks for 2 input_ids"},
      {R"({"input_ids":[1,2],"completion_mask":[0,2]})",
       "completion_mask[1] = 2 must be 1, or 0 for a token that is not trained on"},
      {R"({"input_ids":[1,2],"assistant_masks":"01"})", "assistant_masks must be a list"},
      {R"({"input_ids":[1,2],"labels":[-100,2],"completion_mask":[0,0]})",
       "labels[1] is 2 and completion_mask[1] is 0: remove one of the columns"},
      {R"({"input_ids":[1,2],"labels":[-100,-100],"assistant_masks":[0,1]})",
       "labels[1] is -100 and assistant_masks[1] is 1"},
      {R"({"input_ids":[1,2],"attention_mask":[1,2]})", "attention_mask[1] = 2 must be 1, or 0"},
      {R"({"input_ids":[1,2],"attention_mask":[-1,1]})", "attention_mask[0] = -1 must be 1, or 0"},
      {R"({"input_ids":[1,2],"attention_mask":[0.5,1]})", "attention_mask[0] = 0.5 must be 1, or 0"},
      {R"({"input_ids":[1,2],"attention_mask":[[1,1]]})", "attention_mask must be a flat list"},
      {R"({"input_ids":[1,2],"attention_mask":1})", "attention_mask must be a list"},
      {R"({"input_ids":[1,2],"attention_mask":["1",1]})", "attention_mask must be a list"},
      {R"({"input_ids":[1],"input_ids":[1]})", "twice"},
      {R"({"input_ids":[1],"a":{"b":1,"b":2}})", "twice"},
      {R"({"input_ids":[1],"\u0069nput_ids":[2]})", "twice"},
      {"\xEF\xBB\xBF{\"input_ids\":[1]}", "byte order mark"},
      {std::string("{\"input_ids\":[1]}\0{", 18), "NUL"},
      {std::string("{\"input_ids\":[1\0]}", 18), "NUL"},
  };
  for (const auto& [line, reason] : rows) {
    EXPECT_THAT(refusal_of(line), AllOf(HasSubstr("65 "), HasSubstr(reason))) << line;
  }
  EXPECT_EQ(refusal_of(R"({"input_ids":[1],"labels":[1]})"), "nothing was thrown");
}

TEST(TokenRow, DepthAndKeysAreBounded) {
  const auto nested = [](int depth) {
    return R"({"input_ids":[1],"a":)" + std::string(static_cast<size_t>(depth), '[') +
           std::string(static_cast<size_t>(depth), ']') + "}";
  };
  EXPECT_EQ(refusal_of(nested(max_json_depth - 1)), "nothing was thrown");
  EXPECT_THAT(refusal_of(nested(max_json_depth)), HasSubstr("nested deeper"));
  EXPECT_THAT(refusal_of(std::string(100000, '[')), HasSubstr("JSON object"));
  EXPECT_THAT(refusal_of(R"({"a":)" + std::string(4 << 20, '[')), HasSubstr("nested deeper"));
  std::string objects;
  for (int i = 0; i < 1000000; ++i) objects += R"({"a":)";
  EXPECT_THAT(refusal_of(objects), HasSubstr("nested deeper"));
  std::string keys = R"({"input_ids":[1])";
  for (int i = 0; i < 2000; ++i) keys += ",\"k" + std::to_string(i) + "\":0";
  EXPECT_THAT(refusal_of(keys + "}"), HasSubstr("more than 1000 keys"));
}

std::string text_of(const std::string& line, const std::string& column = "text") {
  std::string text;
  const bool full = parse_text_row(line, column, text);
  EXPECT_EQ(full, !text.empty());
  return text;
}

TEST(TextRow, DecodesTheColumnExactly) {
  EXPECT_EQ(text_of(R"({"text":"a b"})"), "a b");
  EXPECT_EQ(text_of(R"({"id":7,"meta":{"text":"no"},"text":"yes","z":["text"]})"), "yes");
  EXPECT_EQ(text_of(R"({"text":"no","body":"yes"})", "body"), "yes");
  EXPECT_EQ(text_of(R"({"text":"\u0041\n\t\"\\\/\b\f\r\u20AC\ud83d\ude00"})"), "A\n\t\"\\/\b\f\r\u20ac\U0001F600");
  EXPECT_EQ(text_of(R"({"text":"a\u0000b"})"), std::string("a\0b", 3));
  EXPECT_EQ(text_of("{\"text\":\"\u00e9\U0001F600\"}"), "\u00e9\U0001F600");
  EXPECT_EQ(text_of(R"({"text":""})"), "");
  EXPECT_EQ(text_of(R"({"text":null})"), "");
  EXPECT_EQ(text_of(R"({"te\u0078t":"escaped key"})"), "escaped key");
}

TEST(TextRow, RefusesWhatIsNoRowOfText) {
  struct Case {
    std::string line, reason;
    size_t byte;  ///< position of the parser: at the error, or at the end of a value of a wrong type
  };
  const std::vector<Case> rows = {
      {R"({"text":"\ud83d"})", "a lone surrogate", 15},
      {R"({"text":"\ud83dx"})", "a lone surrogate", 15},
      {R"({"text":"\ude00"})", "a lone surrogate", 14},
      {R"({"text":"\ud83d\ud83d"})", "a lone surrogate", 20},
      {"{\"text\":\"\xFF\"}", "not UTF-8", 9},
      {"{\"text\":\"\xED\xA0\x80\"}", "not UTF-8", 10},
      {"{\"text\":\"\xC0\x80\"}", "not UTF-8", 9},
      {"{\"text\":\"a\tb\"}", "control characters", 10},
      {R"({"text":"a)", "the line ends too early", 10},
      {R"({"text":"a"},)", "not valid JSON", 12},
      {R"({"text":3})", "must be a text", 9},
      {R"({"text":["a"]})", "must be a text", 8},
      {R"({"text":{"a":1}})", "must be a text", 8},
      {R"({"text":true})", "must be a text", 11},
      {R"({"text":"a","text":"b"})", "twice", 17},
      {R"({"body":"a"})",
       "no column 'text': data.text_column (llmtool: --text-column) names the one with the text (there are: 'body')",
       0},
      {R"({"text":"a","input_ids":[1]})", "cannot be mixed", 0},
      {R"(["text"])", "must be a JSON object", 0},
      {"\xEF\xBB\xBF{\"text\":\"a\"}", "byte order mark", 0},
      {std::string("{\"text\":\"a\"}\0", 13), "NUL", 12},
      {R"({"a":)" + std::string(100000, '['), "nested deeper", 68},
  };
  for (const Case& c : rows) {
    std::string text;
    try {
      parse_text_row(c.line, "text", text);
      ADD_FAILURE() << "taken: " << c.line.substr(0, 80);
    } catch (const RowError& error) {
      EXPECT_THAT(error.reason(), HasSubstr(c.reason)) << c.line.substr(0, 80);
      EXPECT_EQ(error.byte(), c.byte) << c.line.substr(0, 80);
    }
  }
}

TEST(TextRow, KeysAreThoseOfTheRowItself) {
  EXPECT_THAT(row_keys(R"({"a":{"input_ids":[1]},"text":"labels"})"), ElementsAre("a", "text"));
  EXPECT_TRUE(row_keys("nonsense").empty());
}

TEST(TextRow, WhatIsBlank) {
  for (const char* line : {"", " ", "\t", "\r", " \t\r", "\r\r"}) EXPECT_TRUE(is_blank(line)) << line;
  for (const char* line : {"x", "\f", "\xC2\xA0", "{}"}) EXPECT_FALSE(is_blank(line)) << line;
}

std::vector<std::string> lines_between(const std::string& path, int64_t begin, int64_t end,
                                       int64_t limit = default_row_limit) {
  const FileHandle file = FileHandle::open_to_read(path);
  LineReader reader(file, file.size(), begin, end, limit);
  std::vector<std::string> lines;
  std::string_view line;
  while (reader.next(line)) lines.emplace_back(line);
  return lines;
}

TEST(LineReader, EveryLineBelongsToOneRange) {
  const Folder folder;
  const std::string text = "a\n\nbcd\r\nef\n\n\nlast";
  const std::vector<std::string> expected = {"a", "", "bcd", "ef", "", "", "last"};
  const std::string path = folder.file("x", text), ended = folder.file("y", text + "\n");
  const int64_t size = static_cast<int64_t>(text.size());
  EXPECT_EQ(lines_between(path, 0, size), expected);
  EXPECT_EQ(lines_between(ended, 0, size + 1), expected);
  for (int64_t cut = 1; cut < size; ++cut) {
    for (int64_t second = cut; second < size; ++second) {
      std::vector<std::string> all = lines_between(path, 0, cut);
      for (const auto& [begin, end] : {std::pair{cut, second}, {second, size}}) {
        if (begin == end) continue;
        for (std::string& line : lines_between(path, begin, end)) all.push_back(line);
      }
      ASSERT_EQ(all, expected) << cut << ' ' << second;
    }
  }
}

TEST(LineReader, LongLinesCrossPieces) {
  const Folder folder;
  std::string text;
  std::vector<std::string> expected;
  for (const size_t length : {300000, 5, 262143, 262144, 700000, 1}) {
    expected.emplace_back(length, static_cast<char>('a' + expected.size()));
    text += expected.back() + "\n";
  }
  const std::string path = folder.file("x", text);
  const int64_t size = static_cast<int64_t>(text.size());
  EXPECT_EQ(lines_between(path, 0, size), expected);
  std::vector<std::string> all = lines_between(path, 0, 800000);
  for (std::string& line : lines_between(path, 800000, size)) all.push_back(line);
  EXPECT_EQ(all, expected);
}

TEST(LineReader, RefusesALineBeyondTheLimit) {
  const Folder folder;
  const auto verdict = [&](const std::string& text, int64_t limit) {
    return refusal([&] { lines_between(folder.file("x", text), 0, 4, limit); });
  };
  for (const int64_t limit : {int64_t{5}, int64_t{262144}, int64_t{1} << 20}) {
    const std::string longest(static_cast<size_t>(limit), 'x');
    for (const char* line_end : {"\n", "\r\n", ""}) {
      EXPECT_EQ(verdict("ok\n" + longest + line_end, limit), "nothing was thrown") << limit;
      EXPECT_THAT(
          verdict("ok\n" + longest + "x" + line_end, limit),
          AllOf(HasSubstr("65 "), HasSubstr("x:2: byte 3: the row has " + std::to_string(limit + 1) + " bytes"),
                HasSubstr("more than the " + std::to_string(limit) + " of data.row_limit"), HasSubstr("--row-limit")));
    }
    EXPECT_THAT(verdict("ok\n" + std::string(static_cast<size_t>(20 * limit + 300000), 'x'), limit),
                HasSubstr("the row has more than "))
        << "it is not read to its end";
  }
}

TEST(LineReader, AByteOrderMarkBeginsAFileAndNoRow) {
  const Folder folder;
  const std::string mark = "\xEF\xBB\xBF", path = folder.file("x", mark + "a\n" + mark + "b");
  EXPECT_THAT(lines_between(path, 0, 6), ElementsAre("a", mark + "b"));
  const FileHandle file = FileHandle::open_to_read(path);
  LineReader reader(file, file.size(), 0, 1);
  std::string_view line;
  ASSERT_TRUE(reader.next(line));
  EXPECT_EQ(reader.offset(), 3);
  EXPECT_EQ(lines_between(path, 0, 3, 1).size(), 1U) << "nor does it count";
}

}  // namespace
}  // namespace llmtrain
