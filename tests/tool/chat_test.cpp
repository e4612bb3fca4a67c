// llmtool chat render.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tool/tool_program.hpp"

namespace llmtrain {
namespace {

using test::llmtool;
using test::Outcome;
using testing::HasSubstr;

class ChatRender : public test::ToolTest {
 protected:
  Outcome render(std::vector<std::string> more, const std::string& rows) const {
    more.insert(more.begin(), {"chat", "render", "--model", "tests/reference/tokenizers/synthetic/" + tokenizer,
                               "--input", "-", "--template", "chatml"});
    return llmtool(more, rows);
  }
  std::string tokenizer = "gpt2.json";
};

const std::string row = R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})"
                        "\n";

TEST_F(ChatRender, ShowsWhatIsTrained) {
  const Outcome outcome = render({}, row + "\n" + row);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("<|im_start|>assistant\n\xE2\x9F\xA6"
                                     "b<|im_end|>\xE2\x9F\xA7\n"));
  EXPECT_THAT(outcome.out, HasSubstr("--- line 3: "));
}

TEST_F(ChatRender, IdsAndMask) {
  const Outcome outcome = render({"--ids", "--train-on", "all"}, row);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto line = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(line["input_ids"].size(), line["mask"].size());
  EXPECT_EQ(line["mask"], std::vector<int>(line["mask"].size(), 1));
}

TEST_F(ChatRender, RefusesRowsByTheirLine) {
  const Outcome outcome = render({}, row + R"({"messages": [{"role": "user", "content": "a"}]})");
  EXPECT_EQ(outcome.code, 65);
  EXPECT_THAT(outcome.err, HasSubstr("standard input:2: there is no turn of the assistant"));
  EXPECT_EQ(render({"--train-on", "some"}, row).code, 64);
}

/// The flags of rows name formats and columns as the deck does, in every subcommand that reads rows.
TEST_F(ChatRender, FormatsAndColumns) {
  const std::string named = R"({"question": "a", "answer": "b"})",
                    ids = render({"--ids"}, R"({"prompt": "a", "completion": "b"})").out;
  EXPECT_EQ(render({"--ids", "--columns", "prompt:question,completion:answer"}, named).out, ids);
  EXPECT_EQ(render({"--ids", "--columns", "prompt:question", "--columns", "completion:answer", "--format",
                    "prompt_completion"},
                   named)
                .out,
            ids);
  const Outcome unknown = render({}, named);
  EXPECT_EQ(unknown.code, 65);
  EXPECT_THAT(unknown.err, HasSubstr("standard input:1: the columns of the row fit no format: 'question', 'answer'"));
  EXPECT_THAT(unknown.err, HasSubstr("data.columns (--columns)"));
  const std::pair<std::vector<std::string>, const char*> refusals[] = {
      {{"--format", "mesages"}, "did you mean messages?"},
      {{"--columns", "body:x"}, "'body' is not a role of any format"},
      {{"--columns", "prompt"}, "must be role:column"},
      {{"--columns", "messages:x", "--format", "alpaca"}, "'messages' is not a role of format alpaca"}};
  for (const auto& [flags, message] : refusals) {
    const Outcome outcome = render(flags, named);
    EXPECT_EQ(outcome.code, 64);
    EXPECT_THAT(outcome.err, HasSubstr(message));
  }
}

TEST_F(ChatRender, TheColumnOfTextHasTwoFlags) {
  const std::string rows = file("texts.jsonl", R"({"body": "a text"})"), output = path("texts.h5");
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"--columns", "text:body"}, {"--text-column", "body"}}) {
    std::vector<std::string> prepare = {"prepare", "--input",  rows,   "--tokenizer",
                                        "bytes",   "--output", output, "--force"};
    prepare.insert(prepare.end(), flags.begin(), flags.end());
    EXPECT_EQ(llmtool(prepare).code, 0) << flags.front();
    EXPECT_EQ(llmtool({"validate", rows, flags[0], flags[1]}).code, 0) << flags.front();
  }
  EXPECT_EQ(llmtool({"validate", rows, "--columns", "text:body", "--text-column", "other"}).code, 64);
}

}  // namespace
}  // namespace llmtrain
