// Flags of turns in rows of messages and of sharegpt, and integers beyond 64 bits in rows.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/files/json_reader.hpp"
#include "data/formats/row_format.hpp"
#include "data_files.hpp"

namespace llmtrain {
namespace {

using Json = nlohmann::ordered_json;
using test::refusal;
using testing::HasSubstr;

/// A row whose answer has these keys, as both formats write it.
std::string row_of(const std::string& format, const std::string& keys) {
  return format == "messages"
             ? R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a")" + keys + "}]}"
             : R"({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a")" + keys + "}]}";
}

Json answer_of(const std::string& format, const std::string& keys) {
  return std::get<Conversation>(RowReader(format, {}, true).read_documents(row_of(format, keys)).documents.front())
      .messages.back();
}

TEST(TurnFlags, SayWhetherATurnIsTrained) {
  const Json plain = {{"role", "assistant"}, {"content", "a"}};
  Json trained = plain, left_out = plain;
  trained[turn_flag] = true;
  left_out[turn_flag] = false;
  for (const std::string format : {"messages", "sharegpt"}) {
    for (const char* flag : {"weight\": 0", "weight\": 0.0", "train\": false", "loss_weight\": 0.0"})
      EXPECT_EQ(answer_of(format, std::string(", \"") + flag), left_out) << flag;
    for (const char* flag : {"weight\": 1", "train\": true", "loss_weight\": 1.0", "train\": 1, \"weight\": 1"})
      EXPECT_EQ(answer_of(format, std::string(", \"") + flag), trained) << flag;
    EXPECT_EQ(answer_of(format, ", \"weight\": null"), plain);
    for (const char* flag : {"0.5", "2", "-1", "\"1\"", "[]"}) {
      EXPECT_THAT(refusal([&] { answer_of(format, std::string(", \"weight\": ") + flag); }),
                  testing::AllOf(HasSubstr("[1].weight"), HasSubstr("0 or 1"), HasSubstr("correct it, or remove it")));
    }
    EXPECT_THAT(refusal([&] { answer_of(format, ", \"weight\": 0, \"train\": true"); }), HasSubstr("contradicts"));
  }
}

TEST(TurnFlags, RowsKeepTheDigitsOfIntegers) {
  const std::string digits = "15511210043330985984000000";
  const std::string call = R"({\"name\": \"f\", \"arguments\": {\"n\": )" + digits + "}}";
  const Json shared =
      std::get<Conversation>(RowReader("sharegpt", {}, true)
                                 .read_documents(R"({"conversations": [{"from": "human", "value": "q"}, {"from": )"
                                                 R"("function_call", "value": ")" +
                                                 call + R"("}]})")
                                 .documents.front())
          .messages.back();
  EXPECT_EQ(json_text(shared["tool_calls"][0]["function"]["arguments"]), "{\"n\":" + digits + "}");
  const RowDocuments prompt =
      RowReader("prompt", {}, true).read_documents("{\"prompt\": \"q\", \"id\": -" + digits + "}");
  EXPECT_EQ(prompt.columns, "{\"id\":-" + digits + "}");
}

}  // namespace
}  // namespace llmtrain
