// split and validate.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "data/compressed_data.hpp"
#include "data/files/token_file.hpp"
#include "tool/tool_program.hpp"

namespace llmtrain {
namespace {

using test::llmtool;
using test::Outcome;
using testing::AllOf;
using testing::HasSubstr;

class DataTools : public test::ToolTest {
 protected:
  std::vector<std::string> lines(const std::string& name) const {
    std::istringstream text(content(name));
    std::vector<std::string> all;
    for (std::string line; std::getline(text, line);) all.push_back(line);
    return all;
  }
  Outcome split(const std::string& input, const std::string& ending, std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"split", "--input", path(input), "--train", path("train" + ending), "--validation",
                               path("validation" + ending), "--force"});
    return llmtool(more);
  }
};

TEST_F(DataTools, TablesAreRowsOfEveryCommand) {
  file("a.csv", "text,id\n\"one, \"\"two\"\"\",1\nthree,2\n\"four\nfive\",3\n");
  file("a.jsonl", R"({"text":"one, \"two\"","id":"1"})"
                  "\n"
                  R"({"text":"three","id":"2"})"
                  "\n"
                  R"({"text":"four\nfive","id":"3"})"
                  "\n");
  ASSERT_EQ(split("a.csv", ".jsonl", {"--fraction", "0.4"}).code, 0);
  EXPECT_EQ((content("train.jsonl") + content("validation.jsonl")).size(), content("a.jsonl").size()) << "all columns";
  EXPECT_THAT(split("a.csv", ".csv").err, HasSubstr("must end in .jsonl"));
  const auto prepared = [&](const std::string& input) {
    const Outcome outcome =
        llmtool({"prepare", "--input", path(input), "--tokenizer", "bytes", "--output", path("out.h5"), "--force"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    const auto tokens = open_token_file(path("out.h5"));
    std::vector<int32_t> ids(static_cast<size_t>(tokens->tokens()));
    tokens->read(0, tokens->tokens(), ids.data());
    return ids;
  };
  EXPECT_EQ(prepared("a.csv"), prepared("a.jsonl"));
  EXPECT_THAT(llmtool({"validate", path("a.csv")}).out, HasSubstr("documents 3, "));
  const Outcome score = llmtool({"score", "--metric", "exact_match", "--hypotheses", path("a.csv"), "--references",
                                 path("a.jsonl"), "--reference-column", "text"});
  EXPECT_THAT(score.out, HasSubstr("100")) << score.err;
}

TEST_F(DataTools, SplitConservesRows) {
  std::string rows;
  for (int i = 0; i < 1000; ++i)
    rows += "{\"text\":\"row " + std::to_string(i) + "\"}" + (i % 100 == 5 ? "\r\n\n" : "\n");
  file("a.jsonl", rows);
  const Outcome outcome = split("a.jsonl", ".jsonl", {"--fraction", "0.13"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("870 documents"), HasSubstr("130 documents")));
  EXPECT_EQ(content("train.jsonl").size() + content("validation.jsonl").size(), rows.size());
  const auto full = [](const std::vector<std::string>& all) {
    return std::count_if(all.begin(), all.end(), [](const std::string& line) { return !line.empty(); });
  };
  EXPECT_EQ(full(lines("train.jsonl")), 870);
  EXPECT_EQ(full(lines("validation.jsonl")), 130);
  std::vector<std::string> both = lines("train.jsonl"), expected = lines("a.jsonl");
  const std::vector<std::string> validation = lines("validation.jsonl");
  both.insert(both.end(), validation.begin(), validation.end());
  std::sort(both.begin(), both.end());
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(both, expected);

  split("a.jsonl", ".jsonl", {"--fraction", "0.13"});
  EXPECT_EQ(lines("validation.jsonl"), validation) << "a function of the seed";
  split("a.jsonl", ".jsonl", {"--fraction", "0.13", "--seed", "43"});
  EXPECT_NE(lines("validation.jsonl"), validation);
}

TEST_F(DataTools, SplitConservesTextAndTokens) {
  file("a.txt", "one|two|three|four|five");
  ASSERT_EQ(split("a.txt", ".txt", {"--fraction", "0.4", "--document-separator", "|"}).code, 0);
  const std::string train = content("train.txt"), validation = content("validation.txt");
  EXPECT_EQ(train.size() + validation.size(), 23U);
  const auto count = [](const std::string& text) { return std::count(text.begin(), text.end(), '|'); };
  EXPECT_EQ(count(train) + count(validation), 4);

  ASSERT_EQ(llmtool({"prepare", "--input", path("a.txt"), "--document-separator", "|", "--tokenizer", "bytes",
                     "--output", path("a.h5")})
                .code,
            0);
  const Outcome outcome = split("a.h5", ".h5", {"--fraction", "0.4"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto parts = {open_token_file(path("train.h5")), open_token_file(path("validation.h5"))};
  std::vector<int32_t> ids;
  int64_t documents = 0;
  for (const auto& part : parts) {
    const size_t before = ids.size();
    ids.resize(before + static_cast<size_t>(part->tokens()));
    part->read(0, part->tokens(), ids.data() + before);
    documents += part->info().documents;
    EXPECT_EQ(part->info().vocabulary_size, 257);
    EXPECT_FALSE(part->info().tokenizer.empty());
  }
  EXPECT_EQ(documents, 5);
  const auto whole = open_token_file(path("a.h5"));
  std::vector<int32_t> expected(static_cast<size_t>(whole->tokens()));
  whole->read(0, whole->tokens(), expected.data());
  std::sort(ids.begin(), ids.end());
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(ids, expected);
}

TEST_F(DataTools, SplitKeepsTheMask) {
  std::string rows;
  for (int i = 0; i < 6; ++i) rows += "{\"input_ids\":[1,2,3],\"labels\":[-100,2,3]}\n";
  file("a.jsonl", rows);
  ASSERT_EQ(llmtool({"prepare", "--input", path("a.jsonl"), "--output", path("a.h5")}).code, 0);
  ASSERT_EQ(split("a.h5", ".h5", {"--fraction", "0.34"}).code, 0);
  const auto part = open_token_file(path("validation.h5"));
  ASSERT_EQ(part->tokens(), 6);
  std::vector<uint8_t> mask(6);
  part->read_mask(0, 6, mask.data());
  EXPECT_EQ(mask, (std::vector<uint8_t>{0, 1, 1, 0, 1, 1}));
}

TEST_F(DataTools, CompressedFilesAreTakenEverywhere) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += "document " + std::to_string(i) + "\n\n";
  file("a.txt", text);
  file("a.txt.gz", test::gzipped(text));
  file("a.txt.zst", test::zstd_packed(text));
  std::vector<std::string> results;
  for (const std::string name : {"a.txt", "a.txt.gz", "a.txt.zst"}) {
    const std::vector<std::string> blank = {"--document-separator", "blank_line"};
    ASSERT_EQ(split(name, ".txt", blank).code, 0) << name;
    const Outcome report = llmtool({"validate", path(name), blank[0], blank[1]});
    ASSERT_EQ(llmtool({"prepare", "--input", path(name), blank[0], blank[1], "--output", path("a.h5"), "--force"}).code,
              0);
    ASSERT_EQ(
        llmtool({"tokenizer", "train", "--input", path(name), "--vocab-size", "280", "--output", path("t"), "--force"})
            .code,
        0);
    const auto tokens = open_token_file(path("a.h5"));
    EXPECT_EQ(tokens->info().documents, 300);
    results.push_back(content("train.txt") + "|" + content("validation.txt") + "|" + report.out + "|" +
                      std::to_string(tokens->tokens()) + content("t/tokenizer.json"));
    EXPECT_EQ(results.back(), results.front()) << name;
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path(""))) {
    EXPECT_EQ(entry.path().string().find("unpacked"), std::string::npos) << entry.path();
  }
}

// prepare, validate and split see the same rows.
TEST_F(DataTools, BlankLinesAndMarksAreNoRows) {
  const std::string mark = "\xEF\xBB\xBF";
  const std::string texts[] = {
      "{\"text\":\"a\"}\r\n\r\n{\"text\":\"b\"}\r\n", "\r\n \t\r\n{\"text\":\"a\"}\n\n{\"text\":\"b\"}\n\r",
      mark + "{\"text\":\"a\"}\n\t\n{\"text\":\"b\"}", mark + "\n{\"text\":\"a\"}\n{\"text\":\"b\"}\n \n"};
  for (const std::string& text : texts) {
    for (const std::string name : {"a.jsonl", "a.NDJSON", "plain"}) {
      file(name, text);
      const Outcome valid = llmtool({"validate", path(name)});
      EXPECT_EQ(valid.code, 0) << valid.err << text;
      EXPECT_THAT(valid.out, AllOf(HasSubstr("documents 2, 2 bytes"), HasSubstr("broken rows 0")));
      const Outcome made =
          llmtool({"prepare", "--input", path(name), "--tokenizer", "bytes", "--output", path("a.h5"), "--force"});
      EXPECT_THAT(made.out, HasSubstr("4 tokens in 2 documents")) << made.err;
      const Outcome parts = split(name, ".ndjson", {"--fraction", "0.5"});
      ASSERT_EQ(parts.code, 0) << parts.err;
      EXPECT_THAT(parts.out, HasSubstr("1 documents"));
      for (const std::string part : {"train.ndjson", "validation.ndjson"}) {
        EXPECT_THAT(llmtool({"validate", path(part)}).out, HasSubstr("documents 1, 1 bytes")) << part << text;
      }
      EXPECT_EQ(split(name, ".txt", {"--fraction", "0.5"}).code, 64) << "rows are written under a name of rows";
    }
  }
}

TEST_F(DataTools, TheRowLimitHoldsEverywhere) {
  const auto row = [](size_t size) { return nlohmann::json{{"text", std::string(size - 11, 'x')}}.dump(); };
  file("a.jsonl", row(20) + "\n" + row(4096) + "\r\n" + row(20) + "\n");
  file("a.jsonl.gz", test::gzipped(content("a.jsonl")));
  const auto commands = [&](const std::string& name, const std::string& limit) {
    return std::vector<std::vector<std::string>>{
        {"prepare", "--input", path(name), "--tokenizer", "bytes", "--output", path("a.h5"), "--force", "--row-limit",
         limit},
        {"validate", path(name), "--row-limit", limit},
        {"split", "--input", path(name), "--train", path("t.jsonl"), "--validation", path("v.jsonl"), "--force",
         "--fraction", "0.4", "--row-limit", limit},
        {"tokenizer", "train", "--input", path(name), "--vocab-size", "258", "--output", path("t"), "--force",
         "--row-limit", limit}};
  };
  for (const std::string name : {"a.jsonl", "a.jsonl.gz"}) {
    for (const auto& command : commands(name, "4KiB")) {
      const Outcome outcome = llmtool(command);
      EXPECT_EQ(outcome.code, 0) << command[0] << outcome.err;
    }
    for (const auto& command : commands(name, "4095")) {
      const Outcome outcome = llmtool(command);
      EXPECT_EQ(outcome.code, 65) << command[0];
      EXPECT_THAT(outcome.out + outcome.err,
                  AllOf(HasSubstr(":2: byte 21: the row has 4096 bytes, more than the 4095 of data.row_limit"),
                        HasSubstr("--row-limit")))
          << command[0];
    }
  }
  EXPECT_EQ(llmtool({"validate", path("a.jsonl"), "--row-limit", "0"}).code, 64);
}

// A line end is not part of the row, and the last row may have none.
TEST_F(DataTools, TheRowLimitIsTheLongestRow) {
  const std::string longest = R"({"text":"abcdefgh"})";  // 19 bytes
  for (const std::string end : {"\n", "\r\n", ""}) {
    file("a.jsonl", fmt::format("{{\"text\":\"x\"}}\n{}{}", longest, end));
    for (const auto& [limit, code] : {std::pair{"19", 0}, {"18", 65}}) {
      EXPECT_EQ(llmtool({"validate", path("a.jsonl"), "--row-limit", limit}).code, code) << limit << end;
      EXPECT_EQ(split("a.jsonl", ".jsonl", {"--fraction", "0.5", "--row-limit", limit}).code, code) << limit << end;
    }
  }
}

// Rows that prepare and validate refuse or count as empty are refused or counted alike by split.
TEST_F(DataTools, SplitReadsRowsAsTheOthersDo) {
  const std::string good = "{\"text\":\"a\"}\n{\"text\":\"b\"}\n";
  for (const std::string bad : {"{\"text\":\"a\"\n", "[1]\n", "{}\n", "{\"text\":1}\n"}) {
    file("a.jsonl", good + bad);
    const Outcome outcome = split("a.jsonl", ".jsonl", {"--fraction", "0.5"});
    EXPECT_EQ(outcome.code, 65) << bad;
    EXPECT_THAT(outcome.err, HasSubstr("a.jsonl:3: byte")) << bad;
    EXPECT_EQ(llmtool({"validate", path("a.jsonl")}).code, 65) << bad;
  }
  file("a.jsonl", "{\"text\":\"a\"}\n{\"text\":null}\n{\"text\":\"\"}\n{\"text\":\"b\"}\n");
  const Outcome outcome = split("a.jsonl", ".jsonl", {"--fraction", "0.5"});
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("train.jsonl: 1 documents"), HasSubstr("validation.jsonl: 1 documents")))
      << outcome.err;
  // Rows for other programs are rows, too; with --text-column their texts are looked at.
  file("a.jsonl", "{\"content\":\"\"}\n{\"content\":\"b\"}\n");
  EXPECT_EQ(split("a.jsonl", ".jsonl", {"--fraction", "0.5"}).code, 0);
  EXPECT_EQ(split("a.jsonl", ".jsonl", {"--fraction", "0.5", "--text-column", "content"}).code, 65) << "one document";
}

// UTF-16 text without a byte order mark can be valid UTF-8; it is refused.
TEST_F(DataTools, WideCharactersAreRefusedEverywhere) {
  const auto wide = [](const std::string& text, bool little, size_t width) {
    std::string out;
    for (const char c : text) {
      const std::string zeros(width - 1, '\0');
      out += little ? c + zeros : zeros + c;
    }
    return out;
  };
  const std::string rows = "{\"text\":\"a\"}\n{\"text\":\"b\"}\n", text = "plain words\n";
  const std::string russian("\x3f\x04\x40\x04\x38\x04\x20\x00\x32\x04\x35\x04\x42\x04", 14);
  const struct {
    std::string name, content, remedy;
  } cases[] = {{"a.json", wide(rows, false, 2), "iconv -f UTF-16BE"},
               {"a.jsonl", wide(rows, true, 2), "UTF-16LE"},
               {"a.txt", wide(text, true, 2), "UTF-16LE"},
               {"a.txt", wide(text, true, 4), "UTF-32LE"},
               {"a.txt", wide(text, false, 4), "UTF-32BE"},
               {"a.txt", russian, "UTF-16LE"}};
  for (const auto& [name, content, remedy] : cases) {
    file(name, content);
    for (const Outcome& outcome :
         {llmtool({"validate", path(name)}), split(name, ".jsonl"),
          llmtool({"prepare", "--input", path(name), "--tokenizer", "bytes", "--output", path("a.h5"), "--force"})}) {
      EXPECT_EQ(outcome.code, 65) << name;
      EXPECT_THAT(outcome.err, AllOf(HasSubstr("a NUL at every second byte"), HasSubstr(remedy))) << name;
    }
  }
  for (const std::string& fine : {std::string("abc\0def\0ghi\0", 12), std::string("a\0\n", 3)}) {
    file("a.txt", fine);
    EXPECT_EQ(llmtool({"validate", path("a.txt")}).code, 0);
  }
}

TEST_F(DataTools, SplitRefusals) {
  file("a.txt", "one|two|three|four|five");
  EXPECT_EQ(split("a.txt", ".txt").code, 65) << "one document";
  EXPECT_EQ(split("a.txt", ".txt", {"--fraction", "0.01", "--document-separator", "|"}).code, 65);
  EXPECT_EQ(split("a.txt", ".txt", {"--fraction", "1"}).code, 64);
  EXPECT_EQ(split("a.txt", ".jsonl").code, 64);
  EXPECT_EQ(split("missing.txt", ".txt").code, 66);
  EXPECT_EQ(llmtool({"split", "--input", path("a.txt"), "--train", path("a.txt"), "--validation", path("b.txt")}).code,
            64);
  EXPECT_EQ(content("a.txt"), "one|two|three|four|five");
  EXPECT_EQ(split("a.txt", ".txt", {"--seed", "-1", "--document-separator", "|"}).code, 64);
}

TEST_F(DataTools, SplitWritesTwoFilesOrNone) {
  file("a.txt", "one|two|three|four|five");
  ASSERT_EQ(llmtool({"prepare", "--input", path("a.txt"), "--document-separator", "|", "--tokenizer", "bytes",
                     "--output", path("a.h5")})
                .code,
            0);
  const auto expect = [&](int code, const std::string& input, const std::string& train, const std::string& validation) {
    const Outcome outcome = llmtool({"split", "--input", path(input), "--train", train, "--validation", validation,
                                     "--fraction", "0.4", "--document-separator", "|", "--force"});
    EXPECT_EQ(outcome.code, code) << train << ' ' << validation << ": " << outcome.err;
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path(""))) files += entry.is_regular_file() ? 1 : 0;
    EXPECT_EQ(files, 2) << train << ' ' << validation;
  };
  std::filesystem::create_directory(path("folder.txt"));
  std::filesystem::create_directory(path("folder.h5"));
  for (const std::string ending : {".txt", ".h5"}) {
    const std::string input = "a" + ending, output = path("b" + ending), folder = path("folder" + ending);
    expect(64, input, output, path("./b" + ending));  // one file by two names
    expect(73, input, folder, output);
    expect(73, input, output, folder);
    expect(73, input, output, path("none/b" + ending));
  }
  expect(64, "a.txt", "-", path("b.txt"));
  expect(74, "a.txt", "/dev/full", path("b.txt"));
}

TEST_F(DataTools, ValidateCountsWhatIsWrong) {
  std::string words;
  for (int i = 0; i < 400; ++i) words += "word" + std::to_string(i * 7919 % 1000) + " ";
  const auto row = [](const std::string& text) { return nlohmann::json{{"text", text}}.dump() + "\n"; };
  file("a.jsonl", row("first document") + row("") + row("first document") + "{\"text\":3}\n" + row(words) +
                      row(words + "end") + "\n" + row("  \n") + "{\"text\":\"\\ud800\"}\n" +
                      row(std::string(5000, 'x')));
  const Outcome outcome = llmtool({"validate", path("a.jsonl"), "--json", "--huge", "4000", "--tokenizer", "bytes"});
  EXPECT_EQ(outcome.code, 65);
  const nlohmann::json report = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(report["usable"], false);
  EXPECT_EQ(report["documents"], 6);
  EXPECT_EQ(report["empty"], 1);
  EXPECT_EQ(report["blank"], 1);
  EXPECT_EQ(report["broken_rows"], 2);
  EXPECT_EQ(report["huge"], 1);
  EXPECT_EQ(report["duplicates"]["exact"], 1);
  EXPECT_EQ(report["duplicates"]["near"], 1);
  EXPECT_EQ(report["exact_duplicates"][0][1]["document"], 2);
  EXPECT_EQ(report["problems"][0]["line"], 4);
  EXPECT_EQ(report["problems"][1]["line"], 9);
  EXPECT_EQ(report["huge_documents"][0]["bytes"], 5000);
  EXPECT_EQ(report["tokens"], report["bytes"]);
  EXPECT_EQ(report["unknown"], 0);
  EXPECT_EQ(report["length"]["characters"]["longest"], 5000);
  int64_t in_histogram = 0;
  for (const auto& entry : report["length"]["characters"]["histogram"]) in_histogram += entry[1].get<int64_t>();
  EXPECT_EQ(in_histogram, 6);

  file("b.jsonl", row("a right one") + row("and another"));
  const Outcome right = llmtool({"validate", path("b.jsonl")});
  EXPECT_EQ(right.code, 0) << right.err;
  EXPECT_THAT(right.out, AllOf(HasSubstr("documents 2,"), HasSubstr("duplicates: 0 exact, 0 near")));
}

TEST_F(DataTools, ValidateTextAndUnknownCharacters) {
  file("known.txt", "abc ");
  ASSERT_EQ(llmtool({"prepare", "--input", path("known.txt"), "--output", path("known.h5")}).code, 0);
  file("a.txt", "abc\n\nab\u20acc\n\nx");
  const Outcome outcome = llmtool(
      {"validate", path("a.txt"), "--document-separator", "blank_line", "--json", "--tokenizer", path("known.h5")});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const nlohmann::json report = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(report["documents"], 3);
  EXPECT_EQ(report["characters"], 8);
  EXPECT_EQ(report["tokens"], 8);
  EXPECT_EQ(report["unknown"], 2);
  EXPECT_EQ(report["tokens_per_character"], 1.0);
  file("b.txt",
       "good\n\nb\xFF"
       "d\n\ngood");
  const Outcome bad = llmtool({"validate", path("b.txt"), "--document-separator", "blank_line"});
  EXPECT_EQ(bad.code, 65);
  EXPECT_THAT(bad.out, AllOf(HasSubstr("not UTF-8 1"), HasSubstr("b.txt:3: byte 7: 0xff is not part")));
}

// A tokenizer that changes the text before it fails: the error's position refers to the original text.
TEST_F(DataTools, ValidateCountsWhatAUnigramModelDoesNotKnow) {
  file("tokenizer.json", R"({"version":"1.0","added_tokens":[],"normalizer":null,"post_processor":null,"decoder":null,
    "pre_tokenizer":{"type":"Metaspace","replacement":"\u2581","prepend_scheme":"always","split":true},
    "model":{"type":"Unigram","unk_id":null,"vocab":[["\u2581",-1.0],["x",-1.5],["y",-2.0],["</s>",0.0]]}})");
  std::string text;
  for (int i = 0; i < 200; ++i) text += "\u2603x y\u4e00 ";
  file("a.txt", "\u2603x");
  file("b.txt", text);
  const auto count = [&](const std::string& name) {
    const Outcome outcome = llmtool({"validate", path(name), "--json", "--tokenizer", path("tokenizer.json")});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    const nlohmann::json report = nlohmann::json::parse(outcome.out);
    return report["unknown"].get<int64_t>();
  };
  EXPECT_EQ(count("a.txt"), 1);
  EXPECT_EQ(count("b.txt"), 400);
}

}  // namespace
}  // namespace llmtrain
