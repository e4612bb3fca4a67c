// Formats of instruction data, against LLaMA-Factory's converters (tests/reference/formats) and TRL's documentation.

#include "data/formats/row_format.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "data_files.hpp"

namespace llmtrain {
namespace {

std::string recognised(const std::string& row, const std::vector<std::string>& columns) {
  FormatRecognition recognition("auto", columns);
  recognition.add(row);
  return recognition.format();
}

using Json = nlohmann::ordered_json;
using test::content_of;
using test::refusal;
using testing::HasSubstr;

InstructionRow read(std::string_view format, const std::string& row, const std::vector<std::string>& columns = {},
                    bool templated = true) {
  RowDocuments documents = RowReader(format, columns, templated).read_documents(row);
  if (!documents.left_out.empty()) throw LeftOutRow(documents.left_out);
  return std::move(documents.documents.front());
}
Conversation conversation(std::string_view format, const std::string& row,
                          const std::vector<std::string>& columns = {}) {
  return std::get<Conversation>(read(format, row, columns));
}
std::string refused(std::string_view format, const std::string& row) {
  return refusal([&] { read(format, row); });
}

/// Messages with LLaMA-Factory's roles, as its templates take them: a function's call is a text of JSON.
Json with_roles_of_llama_factory(const Json& messages) {
  Json result = Json::array();
  for (const Json& message : messages) {
    Json turn = {{"role", message["role"]}, {"content", message["content"]}};
    if (turn["role"] == "tool") turn["role"] = "observation";
    if (message.contains("tool_calls")) {
      turn["role"] = "function";
      turn["content"] = message["tool_calls"][0]["function"];
    }
    result.push_back(turn);
  }
  return result;
}

std::vector<std::string> split_list_of(const std::string& text) {
  std::vector<std::string> items;
  std::stringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) items.push_back(item);
  return items;
}

TEST(RowFormats, GiveTheTurnsOfLlamaFactory) {
  const Json cases = Json::parse(content_of("tests/reference/formats/rows.json"));
  int refused_rows = 0;
  for (const Json& entry : cases) {
    const std::string row = entry["row"], format = entry["format"];
    SCOPED_TRACE(row);
    const std::vector<std::string> columns = split_list_of(entry["columns"]);
    if (entry["response"].is_null()) {
      EXPECT_THAT(refusal([&] { read(format, row, columns); }), HasSubstr("65 conversations"))
          << "it is left out there";
      ++refused_rows;
      continue;
    }
    Json expected = Json::array();
    if (!entry["system"].is_null()) expected.push_back({{"role", "system"}, {"content", entry["system"]}});
    for (const char* part : {"prompt", "response"}) {
      for (const Json& message : entry[part]) {
        expected.push_back(message);
        if (message["role"] == "function") expected.back()["content"] = Json::parse(std::string(message["content"]));
      }
    }
    const Conversation found = conversation(format, row, columns);
    EXPECT_EQ(with_roles_of_llama_factory(found.messages), expected);
    const int64_t prompt = format == "alpaca" ? static_cast<int64_t>(expected.size()) - 1 : -1;
    EXPECT_EQ(found.prompt_messages, prompt);
    EXPECT_EQ(found.tools.is_null(), entry["tools"].is_null());
    EXPECT_EQ(recognised(row, columns), format);
  }
  EXPECT_EQ(refused_rows, 7);
}

TEST(RowFormats, AlpacaWithoutATemplateIsAPromptAndItsCompletion) {
  const auto texts = std::get<PromptCompletion>(
      read("alpaca", R"({"instruction": "q2", "input": "i", "output": "a2", "system": "s", "history": [["q1", "a1"]]})",
           {}, false));
  EXPECT_EQ(texts.prompt, "s\nq1\na1\nq2\ni\n");
  EXPECT_EQ(texts.completion, "a2");
}

TEST(RowFormats, MessagesKeepTheirKeysAndOrder) {
  const Conversation row = conversation("messages", R"({"messages": [
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": null},
      {"content": null, "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"z": 1, "a": 2}}}],
       "role": "assistant"},
      {"role": "tool", "tool_call_id": "7", "content": "3"},
      {"role": "assistant", "content": "done", "reasoning_content": "hm", "tool_calls": null}],
    "system": "s", "tools": "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"b\": 0, \"a\": 1}}]"})");
  EXPECT_EQ(
      row.messages.dump(),
      R"([{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},)"
      R"({"content":null,"tool_calls":[{"type":"function","function":{"name":"f","arguments":{"z":1,"a":2}}}],)"
      R"("role":"assistant"},{"role":"tool","tool_call_id":"7","content":"3"},)"
      R"({"role":"assistant","content":"done","reasoning_content":"hm"}])");
  EXPECT_EQ(row.tools.dump(), R"([{"type":"function","function":{"name":"f","b":0,"a":1}}])");
  EXPECT_EQ(row.prompt_messages, -1);
}

TEST(RowFormats, SharegptToolsAndRolesUnderOtherKeys) {
  const Conversation row = conversation(
      "sharegpt", R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
                      "tools": "[{\"name\": \"f\"}]"})");
  EXPECT_EQ(row.messages.dump(), R"([{"role":"user","content":"q"},{"role":"assistant","content":"a"}])");
  EXPECT_EQ(row.tools.dump(), R"([{"type":"function","function":{"name":"f"}}])");
}

TEST(RowFormats, PromptAndCompletionAreTextsOrMessages) {
  const auto texts = std::get<PromptCompletion>(read("prompt_completion", R"({"prompt": "a ", "completion": "b"})"));
  EXPECT_EQ(texts.prompt + "|" + texts.completion, "a |b");
  const Conversation row =
      conversation("prompt_completion",
                   R"({"prompt": [{"role": "system", "content": "s"}, {"from": "user", "value": "q"}],
          "completion": [{"role": "assistant", "content": "a"}]})");
  EXPECT_EQ(row.prompt_messages, 2);
  EXPECT_EQ(row.messages.dump(), R"([{"role":"system","content":"s"},{"role":"user","content":"q"},)"
                                 R"({"role":"assistant","content":"a"}])");
  EXPECT_EQ(std::get<PlainText>(read("text", R"({"body": "t"})", {"text:body"})).text, "t");
}

TEST(RowFormats, AreRecognisedByTheColumns) {
  const auto name = [](const char* row, const std::vector<std::string>& columns = {}) -> std::string {
    try {
      return recognised(row, columns);
    } catch (const UserError& error) {
      return error.what();
    }
  };
  EXPECT_EQ(name(R"({"text": "t", "messages": [{"role": "user", "content": "q"}]})"), "messages");
  EXPECT_EQ(name(R"({"conversations": [{"role": "user", "content": "q"}]})"), "messages");
  EXPECT_EQ(name(R"({"messages": [{"from": "human", "value": "q"}]})"), "sharegpt");
  EXPECT_EQ(name(R"({"messages": [{"role": "human", "content": "q"}]})"), "sharegpt");
  EXPECT_EQ(name(R"({"messages": null, "prompt": "p", "completion": "c"})"), "prompt_completion") << "null: no column";
  EXPECT_EQ(name(R"({"instruction": "i", "input": "", "output": "o", "text": "all"})"), "alpaca");
  EXPECT_EQ(name(R"({"text": "t", "prompt": "p"})"), "text");
  EXPECT_EQ(name(R"({"question": "t", "answer": "p"})", {"prompt:question", "response:answer"}), "alpaca");
  EXPECT_EQ(name(R"({"question": "t", "answer": "p"})", {"prompt:question", "completion:answer"}), "prompt_completion");
  const std::string unknown = name(R"({"question": "t", "answer": "p"})");
  EXPECT_THAT(unknown, HasSubstr("fit no format: 'question', 'answer'"));
  EXPECT_THAT(unknown, HasSubstr("alpaca (instruction, output)"));
  const char* prompt = R"({"prompt": "p", "completion": "c", "instruction": "p", "output": "c"})";
  EXPECT_THAT(name(prompt), HasSubstr("fit the formats prompt_completion, alpaca"));
}

TEST(RowFormats, TheFirstRowsAgree) {
  FormatRecognition rows("auto", {});
  rows.add(R"({"messages": [{"role": "human", "content": "q"}]})");
  rows.add(R"({"messages": [{"role": "user", "content": "q"}]})");  // sharegpt has these keys too
  EXPECT_THAT(refusal([&] { rows.add(R"({"instruction": "i", "output": "o"})"); }),
              HasSubstr("the row is of format alpaca, and the first row of format sharegpt"));
  EXPECT_EQ(rows.format(), "sharegpt");
}

TEST(RowFormats, RefuseOtherShapes) {
  struct Wrong {
    const char *format, *row, *what;
  };
  const Wrong wrong[] = {
      {"alpaca", R"({"instruction": "q", "answer": "a"})",
       "there is no column 'output' (response of format alpaca), only "
       "'instruction', 'answer'"},
      {"alpaca", R"({"instruction": "q", "output": null})", "output: must be a text, not null"},
      {"alpaca", R"({"instruction": "", "input": "", "output": "a"})", "instruction: is empty, and there is no input"},
      {"alpaca", R"({"instruction": 1, "output": "a"})", "instruction: must be a text, not 1"},
      {"alpaca", R"({"instruction": "q", "output": "a", "history": [["q"]]})",
       "history[0]: must be [question, answer]"},
      {"alpaca", R"({"instruction": "q", "output": "a", "history": "q"})", "history: must be a list"},
      {"messages", R"({"messages": []})", "messages: it has no message"},
      {"messages", R"({"messages": {"role": "user"}})", "messages: must be a list"},
      {"messages", R"({"messages": ["q"]})", "messages[0]: must be an object"},
      {"messages", R"({"messages": [{"content": "q"}]})", "messages[0].role: is missing"},
      {"messages", R"({"messages": [{"role": "user"}]})", "messages[0].content: is missing"},
      {"messages", R"({"messages": [{"role": "user", "content": 7}]})", "messages[0].content: must be a text, not 7"},
      {"messages", R"({"messages": [{"role": "user", "content": [{"type": "image", "url": "x"}]}]})",
       "messages[0].content[0].type: must be text: only texts are trained on, not 'image'"},
      {"messages", R"({"messages": [{"role": "user", "content": "q"}]})",
       "no turn of the assistant to train on, only "
       "turns of 'user'"},
      {"messages", R"({"messages": [{"role": "human", "content": "q"}, {"role": "gpt", "content": "q"}]})",
       "data.format = sharegpt reads these roles"},
      {"messages", R"({"messages": [{"role": "assistant", "content": "a"}], "tools": "{"})",
       "tools: the text is not JSON"},
      {"messages", R"({"messages": [{"role": "assistant", "content": "a"}], "tools": [3]})",
       "tools[0]: must be an object"},
      {"sharegpt", R"({"conversations": [{"from": "human", "value": "q"}, {"from": "gtp", "value": "a"}]})",
       "(did you mean gpt?), not 'gtp'"},
      {"sharegpt", R"({"conversations": [{"from": "human", "value": "q"}, {"from": "human", "value": "a"}]})",
       "conversations[1].from: must be gpt or function_call: turns alternate, not 'human'"},
      {"sharegpt", R"({"conversations": [{"from": "human", "value": "q"}]})",
       "conversations[0].from: must be gpt or function_call: the last turn is the one to learn, not 'human'"},
      {"sharegpt", R"({"conversations": [{"from": "human", "value": "q"}, {"from": "function_call", "value": "f"}]})",
       "conversations[1].value: a function call must be JSON"},
      {"sharegpt", R"({"conversations": [{"from": "human", "value": "q"}, {"from": "function_call", "value": "{}"}]})",
       "conversations[1].value[0].name: is missing"},
      {"prompt_completion", R"({"prompt": "p", "completion": [{"role": "assistant", "content": "a"}]})",
       "prompt and completion must be two texts or two lists of messages"},
      {"prompt_completion",
       R"({"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "user", "content": "a"}]})",
       "no turn of the assistant to train on"},
      {"prompt_completion", R"({"prompt": "p"})", "there is no column 'completion'"},
      {"text", R"({"text": ["p"]})", "text: must be a text"},
      {"text", R"({"text": "p", "text": "q"})", "the key 'text' appears twice"},
      {"text", R"({"text": "p")", "not valid JSON: the line ends too early"},
      {"text", R"([1])", "a row must be a JSON object"},
      {"text", "{\"text\": \"\\ud800\"}", "a lone surrogate is not a character"},
  };
  for (const Wrong& entry : wrong) {
    EXPECT_THAT(refused(entry.format, entry.row), HasSubstr(entry.what)) << entry.row;
    EXPECT_THAT(refused(entry.format, entry.row), testing::StartsWith("65 ")) << entry.row;
  }
  std::string deep = "1", wide = "{";
  for (int i = 0; i < 70; ++i) deep = "[" + deep + "]";
  for (int i = 0; i < 1001; ++i) wide += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":0";
  EXPECT_THAT(refused("text", "{\"x\": " + deep + "}"), HasSubstr("nested deeper than 64 levels"));
  EXPECT_THAT(refused("text", wide + "}"), HasSubstr("more than 1000 keys"));
}

TEST(RowFormats, ColumnsNameRolesOfTheFormat) {
  const auto wrong = [](const std::vector<std::string>& entries, const char* format) {
    return refusal([&] { parse_columns(entries, format); });
  };
  EXPECT_THAT(wrong({"prompt"}, "auto"), HasSubstr("78 'prompt' must be role:column"));
  EXPECT_THAT(wrong({"promt:x"}, "auto"), HasSubstr("(did you mean prompt?)"));
  EXPECT_THAT(wrong({"response:x"}, "messages"),
              HasSubstr("'response' is not a role of format messages, which has messages"));
  EXPECT_THAT(wrong({"prompt:x", "prompt:y"}, "auto"), HasSubstr("prompt has two columns"));
  EXPECT_EQ(parse_columns({"prompt:a:b"}, "alpaca").front().second, "a:b");
}

}  // namespace
}  // namespace llmtrain
