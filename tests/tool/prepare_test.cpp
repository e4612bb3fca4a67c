// prepare and inspect, which shows what prepare made.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "data/files/token_file.hpp"
#include "tool/tool_program.hpp"

namespace llmtrain {
namespace {

using test::llmtool;
using test::Outcome;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class Prepare : public test::ToolTest {
 protected:
  static std::vector<int32_t> tokens(const std::string& name) {
    const auto opened = open_token_file(name);
    std::vector<int32_t> ids(static_cast<size_t>(opened->tokens()));
    opened->read(0, opened->tokens(), ids.data());
    return ids;
  }
};

TEST_F(Prepare, MakesAndShowsATokenFile) {
  const std::string a = file("a.txt", "cab\n\nba"), b = file("b.txt", "a\n\n\n\n");
  const Outcome made =
      llmtool({"prepare", "--input", a, b, "--document-separator", "blank_line", "--output", path("x.h5")});
  EXPECT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.out, AllOf(HasSubstr("9 tokens in 3 documents, vocabulary 5"), HasSubstr("1 empty document")));
  EXPECT_THAT(tokens(path("x.h5")), ElementsAre(3, 1, 2, 4, 2, 1, 4, 1, 4));
  EXPECT_EQ(files(), 3U);

  const Outcome shown = llmtool({"inspect", path("x.h5")});
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, AllOf(HasSubstr("tokens             9\n"), HasSubstr("documents          3\n"),
                               HasSubstr("vocabulary size    5\n"), HasSubstr("eos id             4\n"),
                               HasSubstr("tokenizer          char\n"), HasSubstr("a.txt 7 "), HasSubstr("b.txt 5 "),
                               HasSubstr("llmtool prepare --input")));
  EXPECT_THAT(shown.out, AllOf(HasSubstr("2 shortest, 3 median, 3.0 mean, 3 at 95 %, 4 longest"),
                               HasSubstr("highest id         4\n"), HasSubstr("\"cabbaa\"")));
}

TEST_F(Prepare, ValidationTakesTheTokenizerOfTraining) {
  file("a.txt", "abc");
  ASSERT_EQ(llmtool({"prepare", "--input", path("a.txt"), "--add-bos", "--output", path("a.h5")}).code, 0);
  file("b.txt", "cb");
  ASSERT_EQ(llmtool({"prepare", "--input", path("b.txt"), "--tokenizer", path("a.h5"), "--output", path("b.h5")}).code,
            0);
  EXPECT_THAT(tokens(path("b.h5")), ElementsAre(4, 2, 1, 3));
  file("c.txt", "ab\ncx");
  const Outcome refused =
      llmtool({"prepare", "--input", path("c.txt"), "--tokenizer", path("a.h5"), "--output", path("c.h5")});
  EXPECT_EQ(refused.code, 65);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("c.txt:1: byte 2: character U+000A"), HasSubstr("not among the 3")));
  EXPECT_FALSE(std::filesystem::exists(path("c.h5")));
}

TEST_F(Prepare, EverySubcommandKnowsTheSameTokenizers) {
  const std::string text = file("a.txt", "abc"), ids = file("a.jsonl", "{\"input_ids\":[1,2]}\n");
  ASSERT_EQ(llmtool({"prepare", "--input", text, "--output", path("char.h5")}).code, 0);
  ASSERT_EQ(llmtool({"prepare", "--input", ids, "--output", path("ids.h5")}).code, 0);
  const auto with = [&](const std::string& tokenizer) {
    return std::vector<Outcome>{
        llmtool({"prepare", "--input", text, "--tokenizer", tokenizer, "--force", "--output", path("x.h5")}),
        llmtool({"tokenizer", "info", "--tokenizer", tokenizer}),
        llmtool({"validate", text, "--tokenizer", tokenizer})};
  };
  for (const std::string& tokenizer : {std::string("bytes"), path("char.h5")}) {
    for (const Outcome& outcome : with(tokenizer)) EXPECT_EQ(outcome.code, 0) << tokenizer << outcome.err;
  }
  for (const Outcome& outcome : with("byte")) {
    EXPECT_EQ(outcome.code, 64);
    EXPECT_THAT(outcome.err, HasSubstr("tokenizer byte: it must be bytes, a token file (.h5), or a"));
    EXPECT_THAT(outcome.err, HasSubstr("did you mean bytes?"));
  }
  for (const Outcome& outcome : with(path("ids.h5"))) {
    EXPECT_EQ(outcome.code, 65);
    EXPECT_THAT(outcome.err, HasSubstr("it holds no tokenizer, only token ids"));
  }
  for (const Outcome& outcome : with(path("none.json"))) EXPECT_EQ(outcome.code, 66) << outcome.err;
}

TEST_F(Prepare, RowsKeepTheirIdsAndMask) {
  file("a.jsonl", "{\"input_ids\":[5,6],\"labels\":[-100,6]}\n{\"input_ids\":[7]}\n");
  EXPECT_EQ(llmtool({"prepare", "--input", path("a.jsonl"), "--output", path("a.h5")}).code, 0);
  EXPECT_THAT(tokens(path("a.h5")), ElementsAre(5, 6, 7));
  EXPECT_THAT(llmtool({"inspect", path("a.h5")}).out,
              AllOf(HasSubstr("2 of 3 tokens are trained on"), HasSubstr("vocabulary size    8"),
                    HasSubstr("eos id             none")));
  EXPECT_EQ(llmtool({"prepare", "--input", path("a.jsonl"), "--tokenizer", "char", "--output", path("b.h5")}).code, 64);
  EXPECT_EQ(llmtool({"prepare", "--input", path("a.h5"), "--output", path("b.h5")}).code, 65);
}

TEST_F(Prepare, InspectCountsNoPadding) {
  file("a.jsonl", "{\"input_ids\":[0,5,6],\"attention_mask\":[0,1,1],\"labels\":[-100,-100,6]}\n");
  const Outcome made = llmtool({"prepare", "--input", path("a.jsonl"), "--output", path("a.h5")});
  EXPECT_THAT(made.out, HasSubstr("2 tokens in 1 documents, vocabulary 7"));
  EXPECT_THAT(made.err, HasSubstr("1 tokens are padding (attention_mask 0) and left out"));
  EXPECT_THAT(llmtool({"inspect", path("a.h5")}).out, HasSubstr("1 of 2 tokens are trained on"));
}

TEST_F(Prepare, RowsOfTextAreDocuments) {
  file("a.jsonl", "{\"text\":\"no\",\"body\":\"ab\"}\n{\"body\":null}\n{\"body\":\"\\u0062\"}\n");
  const Outcome made =
      llmtool({"prepare", "--input", path("a.jsonl"), "--text-column", "body", "--output", path("a.h5")});
  EXPECT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.out, AllOf(HasSubstr("5 tokens in 2 documents, vocabulary 3"), HasSubstr("1 empty documents")));
  EXPECT_THAT(tokens(path("a.h5")), ElementsAre(0, 1, 2, 1, 2));
  EXPECT_THAT(llmtool({"inspect", path("a.h5")}).out, HasSubstr("--text-column body"));
  const Outcome refused = llmtool({"prepare", "--input", path("a.jsonl"), "--output", path("b.h5")});
  EXPECT_EQ(refused.code, 65);
  EXPECT_THAT(refused.err, HasSubstr("a.jsonl:2: byte 26: no column 'text'"));
  EXPECT_EQ(llmtool({"prepare", "--input", path("a.jsonl"), "--text-column", "labels", "--output", path("b.h5")}).code,
            64);
}

TEST_F(Prepare, NamesOfStrangersReachNoTerminal) {
  const std::string name = "a\x1B[31m\x07.txt";
  const Outcome made = llmtool({"prepare", "--input", file(name, "abc\x7F"), "--output", path("a.h5")});
  ASSERT_EQ(made.code, 0) << made.err;
  const Outcome shown = llmtool({"inspect", path("a.h5")}),
                valid = llmtool({"validate", path("a*.txt"), "--huge", "1"}),
                refused = llmtool({"prepare", "--input", path(name + "x"), "--output", path("b.h5")});
  for (const std::string& text : {made.err, shown.out, valid.out, valid.err, refused.err}) {
    EXPECT_EQ(text.find_first_of("\x1B\x07\x7F"), std::string::npos) << text;
  }
  for (const std::string& text : {shown.out, valid.out, refused.err}) {
    EXPECT_THAT(text, HasSubstr("a\\x1b[31m\\x07.txt"));
  }
}

TEST_F(Prepare, InspectShowsSafetensors) {
  const Outcome shown = llmtool({"inspect", test::golden_model("llama") + "/model.safetensors"});
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, AllOf(HasSubstr("metadata           'format': 'pt'\n"),
                               HasSubstr("elements           11304 in 21 tensors\n"),
                               HasSubstr("tensor             'lm_head.weight' F32 [41, 24]\n")));
  EXPECT_EQ(llmtool({"inspect", file("cut.safetensors", "\x40")}).code, 65);
  EXPECT_EQ(llmtool({"inspect", path("none.safetensors")}).code, 66);
}

TEST_F(Prepare, RefusalsHaveTheirExitCodes) {
  const std::string text = file("a.txt", "abc");
  const auto code = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"prepare", "--input", text});
    const Outcome outcome = llmtool(more);
    EXPECT_THAT(outcome.err, HasSubstr("llmtool: "));
    return outcome.code;
  };
  EXPECT_EQ(code({}), 64);
  EXPECT_EQ(code({"--output", path("x.bin")}), 64);
  EXPECT_EQ(code({"--output", path("x.h5"), "--tokenizer", "chars"}), 64);
  EXPECT_EQ(code({"--output", path("x.h5"), "--tokenizer", path("no.h5")}), 66);
  EXPECT_EQ(code({"--output", path("no/x.h5")}), 73);
  file("there.h5", "something");
  EXPECT_EQ(code({"--output", path("there.h5")}), 73);
  EXPECT_EQ(llmtool({"prepare", "--input", text, "--output", path("there.h5"), "--force"}).code, 0);
  EXPECT_EQ(llmtool({"prepare", "--input", path("no.txt"), "--output", path("x.h5")}).code, 66);
  file("bad.txt", "\xFF");
  EXPECT_EQ(llmtool({"prepare", "--input", path("bad.txt"), "--output", path("x.h5")}).code, 65);
  EXPECT_EQ(llmtool({"inspect", path("no.h5")}).code, 66);
  EXPECT_EQ(llmtool({"inspect", path("a.txt")}).code, 65);
  EXPECT_EQ(llmtool({"inspect", path("")}).code, 66) << "a folder is a checkpoint, and this one has no manifest";
  EXPECT_EQ(llmtool({"inspect"}).code, 64);
}

}  // namespace
}  // namespace llmtrain
