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

}  // namespace
}  // namespace llmtrain
