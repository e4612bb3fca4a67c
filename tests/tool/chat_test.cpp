// llmtool chat render.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/files/token_file.hpp"
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

/// Documents of a token file, as chat render prints them.
std::vector<nlohmann::json> documents_of(const std::string& path) {
  const auto file = open_token_file(path);
  std::vector<nlohmann::json> all;
  for (size_t d = 0; d + 1 < file->documents().size(); ++d) {
    const auto begin = static_cast<int64_t>(file->documents()[d]);
    const auto size = static_cast<size_t>(file->documents()[d + 1]) - static_cast<size_t>(begin);
    std::vector<int32_t> ids(size);
    std::vector<uint8_t> mask(size);
    file->read(begin, std::ssize(ids), ids.data());
    file->read_mask(begin, std::ssize(mask), mask.data());
    if (file->info().has_prompts()) std::ranges::fill(mask, uint8_t{0});
    all.push_back({{"input_ids", ids}, {"mask", mask}});
  }
  return all;
}

/// chat render shows what a run trains on, which is what prepare writes: for all formats of rows.
TEST_F(ChatRender, IsWhatIsTrainedOn) {
  const std::string model = "tests/reference/sft/model",
                    turn = R"("messages": [{"role": "user", "content": "a<|im_end|>"},
      {"role": "assistant", "content": "b"}])";
  std::string conversation = turn;
  std::erase(conversation, '\n');
  const std::string cases[] = {
      R"({"text": "the ship<|im_end|>"})"
      "\n"
      R"({"text": ""})"
      "\n"
      R"({"text": "ends<|endoftext|>"})",
      R"({"prompt": "<|im_start|>user\nq<|im_end|>", "completion": " a<|im_end|>"})",
      "{" + conversation + "}",
      R"({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]})"
      "\n"
      R"({"conversations": [{"from": "gpt", "value": "q"}]})",
      R"({"instruction": "q", "input": "i", "output": "a"})",
      R"({"prompt": "<|im_start|>q", "chosen": "a", "rejected": "b"})"
      "\n"
      R"({"prompt": "q", "chosen": "a", "rejected": "a"})"
      "\n"
      R"({"prompt": "q", "chosen": "", "rejected": "a"})",
      R"({"instruction": "q", "chosen": "a", "rejected": "b"})",
      R"({"prompt": "q<|im_end|>", "completion": "a", "label": true})",
      "{" + conversation + R"(, "label": false})",
      R"({"messages": null, "prompt": "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n", "answer": "a b"})",
      R"({"prompt": [{"role": "user", "content": "a"}]})",
      R"({"input_ids": [5, 6, 318], "attention_mask": [1, 1, 0], "labels": [-100, 6, -100]})"
      "\n"
      R"({"input_ids": [5, 6, 7]})",
      R"({"input_ids": [5, 6, 7], "completion_mask": [0, 1, 1], "assistant_masks": [1, 0, 1]})"};
  for (const std::string& rows : cases) {
    SCOPED_TRACE(rows);
    const std::string input = file("rows.jsonl", rows + "\n");
    std::vector<std::string> prepare = {"prepare", "--input", input, "--output", path("rows.h5"), "--force"};
    std::vector<std::string> render = {"chat",   "render", "--model", model, "--template",
                                       "chatml", "--ids",  "--input", input};
    if (rows.find("input_ids") == std::string::npos) {
      prepare.insert(prepare.end(), {"--tokenizer", model, "--template", "chatml"});
    }
    if (rows.find("completion") == std::string::npos && rows.find("chosen") == std::string::npos &&
        rows.find("prompt") != std::string::npos) {
      for (auto* command : {&prepare, &render}) command->insert(command->end(), {"--format", "prompt"});
    }
    const Outcome prepared = llmtool(prepare);
    ASSERT_EQ(prepared.code, 0) << prepared.err;
    const Outcome shown = llmtool(render);
    ASSERT_EQ(shown.code, 0) << shown.err;
    std::istringstream lines(shown.out);
    std::vector<nlohmann::json> rendered;
    for (std::string line; std::getline(lines, line);) {
      rendered.push_back(nlohmann::json::parse(line));
      rendered.back().erase("answer");
    }
    EXPECT_EQ(rendered, documents_of(path("rows.h5")));
  }
}

TEST_F(ChatRender, SaysWhatIsNotRead) {
  const Outcome unread = render({}, R"({"context": "q r", "chosen": "a", "rejected": "b"})");
  EXPECT_EQ(unread.code, 0);
  EXPECT_THAT(unread.err, HasSubstr("format preference does not read these columns of text: 'context'"));
  const std::string regular = R"({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]})";
  const Outcome irregular =
      render({"--ids"}, regular + "\n" + R"({"conversations": [{"from": "gpt", "value": "a"}]})" + "\n" + regular);
  EXPECT_EQ(irregular.code, 0);
  EXPECT_EQ(std::ranges::count(irregular.out, '\n'), 2);
  EXPECT_THAT(irregular.err, HasSubstr("1 rows are left out: their turns do not alternate (the first at standard "
                                       "input:2: conversations[0].from: must be human"));
  const Outcome same = render({}, R"({"prompt": "p", "chosen": "a", "rejected": "a"})");
  EXPECT_THAT(same.out, HasSubstr("left out of training: both answers are equal"));
  // A text of one token ends the one before it in a stream; an answer of one has nothing to train on.
  EXPECT_THAT(render({}, R"({"text": "a"})").out, testing::Not(HasSubstr("left out")));
  EXPECT_THAT(render({}, R"({"prompt": "", "completion": ""})").out, HasSubstr("left out of training: no token"));
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
