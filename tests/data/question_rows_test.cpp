// Rows whose question stands in columns of LLaMA-Factory and Orca, and conversations that LLaMA-Factory leaves out.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/formats/row_format.hpp"
#include "data_files.hpp"

namespace llmtrain {
namespace {

using Json = nlohmann::ordered_json;
using test::refusal;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string format_of(const std::string& row) {
  FormatRecognition recognition("auto", {});
  recognition.add(row);
  return recognition.format();
}

std::string unread_of(const std::string& row, const std::vector<std::string>& columns = {}) {
  FormatRecognition recognition("auto", columns);
  recognition.add(row);
  return recognition.unread_columns();
}

/// The documents of a row in its format: "role: content | ..." with "=>" before the completion.
std::vector<std::string> documents(const std::string& row, bool templated = true,
                                   const std::vector<std::string>& columns = {}) {
  FormatRecognition recognition("auto", columns);
  recognition.add(row);
  std::vector<std::string> all;
  for (const InstructionRow& document :
       RowReader(recognition.format(), columns, templated).read_documents(row).documents) {
    if (const auto* texts = std::get_if<PromptCompletion>(&document)) {
      all.push_back(texts->prompt + "=>" + texts->completion);
      continue;
    }
    const auto& conversation = std::get<Conversation>(document);
    std::string& text = all.emplace_back();
    for (size_t i = 0; i < conversation.messages.size(); ++i) {
      const Json& message = conversation.messages[i];
      if (static_cast<int64_t>(i) == conversation.prompt_messages) text += "=> ";
      text += message["role"].get<std::string>() + ": " + message["content"].get<std::string>() + " | ";
    }
  }
  return all;
}

TEST(QuestionRows, PairsOfLlamaFactoryAndOrca) {
  EXPECT_THAT(documents(R"({"instruction": "q", "input": "i", "chosen": "a", "rejected": "b"})"),
              ElementsAre("user: q\ni | => assistant: a | ", "user: q\ni | => assistant: b | "));
  EXPECT_THAT(documents(R"({"instruction": "q", "input": "i", "chosen": "a", "rejected": "b"})", false),
              ElementsAre("q\ni\n=>a", "q\ni\n=>b"));
  EXPECT_THAT(documents(R"({"instruction": "q", "input": "", "system": "s", "history": [["x", "y"]], "chosen": "a",
                            "rejected": "b"})"),
              ElementsAre("system: s | user: x | assistant: y | user: q | => assistant: a | ",
                          "system: s | user: x | assistant: y | user: q | => assistant: b | "));
  for (const char* column : {"question", "query"}) {
    const std::string row = fmt::format(R"({{"system": "s", "{}": "q", "chosen": "a", "rejected": "b"}})", column);
    EXPECT_THAT(documents(row),
                ElementsAre("system: s | user: q | => assistant: a | ", "system: s | user: q | => assistant: b | "));
    EXPECT_THAT(documents(row, false), ElementsAre("s\nq\n=>a", "s\nq\n=>b"));
    EXPECT_THAT(unread_of(row), IsEmpty());
  }
  EXPECT_THAT(documents(R"({"input": "q", "chosen": "a", "rejected": "b"})"),
              ElementsAre("user: q | => assistant: a | ", "user: q | => assistant: b | "));
  EXPECT_THAT(documents(R"({"prompt": "q", "system": "s", "chosen": "a", "rejected": "b"})").front(),
              "system: s | user: q | => assistant: a | ");
}

/// The text of a column prompt is not a turn: people formatted it.
TEST(QuestionRows, ThePromptOfTrlIsAText) {
  EXPECT_THAT(documents(R"({"prompt": "q ", "chosen": "a", "rejected": "b"})"), ElementsAre("q =>a", "q =>b"));
  EXPECT_THAT(documents(R"({"prompt": "<s>sys q", "system": "sys", "chosen": "a", "rejected": "b"})").front(),
              "<s>sys q=>a")
      << "it has the system message";
  EXPECT_THAT(documents(R"({"ask": "q ", "chosen": "a", "rejected": "b"})", true, {"prompt:ask"}).front(), "q =>a");
  EXPECT_THAT(
      documents(R"({"ask": "q", "more": "i", "chosen": "a", "rejected": "b"})", true, {"prompt:ask", "query:more"})
          .front(),
      "user: q\ni | => assistant: a | ");
  EXPECT_THAT(documents(R"({"prompt": "q", "completion": "a"})"), ElementsAre("q=>a"));
  EXPECT_THAT(documents(R"({"prompt": "q", "completion": "a", "system": "s"})"),
              ElementsAre("system: s | user: q | => assistant: a | "));
}

TEST(QuestionRows, PairsOfConversations) {
  const std::string human = R"("conversations": [{"from": "human", "value": "q"}], )";
  const std::vector<std::string> expected = {"user: q | => assistant: a | ", "user: q | => assistant: b | "};
  const auto expect = [&](const std::string& row) {
    EXPECT_EQ(format_of("{" + row + "}"), "preference");
    EXPECT_EQ(documents("{" + row + "}"), expected) << row;
  };
  expect(human + R"("chosen": {"from": "gpt", "value": "a"}, "rejected": {"from": "gpt", "value": "b"})");
  expect(human + R"("chosen": [{"from": "gpt", "value": "a"}], "rejected": [{"from": "gpt", "value": "b"}])");
  expect(human + R"("chosen": "a", "rejected": "b")");
  const std::string answers =
      R"("chosen": {"role": "assistant", "content": "a"}, "rejected": {"role": "assistant", "content": "b"})";
  expect(R"("messages": [{"role": "user", "content": "q"}], )" + answers);
  expect(R"("prompt": "q", )" + answers);
  expect(R"("question": "q", )" + answers);
  expect(R"("prompt": [{"role": "user", "content": "q"}], )" + answers);
  // What both answers begin with is the prompt, whatever repeats it.
  expect(R"("prompt": "q", "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
            "chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
            "rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}])");
}

TEST(QuestionRows, KtoOfLlamaFactory) {
  const auto expect = [](const std::string& row, const std::string& document, float value) {
    EXPECT_EQ(format_of(row), "unpaired") << row;
    EXPECT_THAT(documents(row), ElementsAre(document));
    EXPECT_EQ(RowReader("unpaired", {}, true).read_documents(row).value, value);
  };
  expect(R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "label": true})",
         "user: q | => assistant: a | ", 1);
  expect(R"({"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "q"},
             {"from": "gpt", "value": "a"}, {"from": "human", "value": "r"}, {"from": "gpt", "value": "b"}],
             "kto_tag": false})",
         "system: s | user: q | assistant: a | user: r | => assistant: b | ", 0);
  expect(R"({"instruction": "q", "input": "i", "output": "a", "kto_tag": true})", "user: q\ni | => assistant: a | ", 1);
  expect(R"({"question": "q", "answer": "a", "label": false})", "user: q | => assistant: a | ", 0);
  // A number beside other columns than TRL's is a label of another kind.
  EXPECT_EQ(format_of(R"({"instruction": "q", "output": "a", "label": 1})"), "alpaca");
  EXPECT_EQ(format_of(R"({"messages": [{"role": "user", "content": "q"}], "label": 3})"), "messages");
  EXPECT_THAT(refusal([] {
                RowReader("unpaired", {}, true)
                    .read_documents(R"({"messages": [{"role": "user", "content": "q"}], "label": true})");
              }),
              HasSubstr("no turn of the assistant"));
}

TEST(QuestionRows, ColumnsOfTextThatAreNotReadAreNamed) {
  EXPECT_THAT(unread_of(R"({"prompt": "p", "chosen": "a", "rejected": "b"})"), IsEmpty());
  EXPECT_THAT(unread_of(R"({"context": "c d", "chosen": "a", "rejected": "b", "score": 3, "list": ["x"]})"),
              HasSubstr("format preference does not read these columns of text: 'context'; data.columns"));
  EXPECT_THAT(unread_of(R"({"prompt": "p", "input": "i j", "completion": "c"})"), HasSubstr("'input'"));
  EXPECT_THAT(unread_of(R"({"prompt": "say i j", "input": "i j", "completion": "c"})"), IsEmpty())
      << "it is in the text";
  EXPECT_THAT(unread_of(R"({"text": "t", "question": "why not"})"), HasSubstr("format text does not read"));
  EXPECT_THAT(unread_of(R"({"context": "c d", "chosen": "a", "rejected": "b"})", {"prompt:context"}), IsEmpty());
  std::string many = R"({"text": "t")";
  for (int i = 0; i < 10; ++i) many += fmt::format(R"(, "c{}": "w {}")", i, i);
  EXPECT_THAT(unread_of(many + "}"), HasSubstr("'c7' and 2 more"));
  FormatRecognition prompts("prompt", {});  // rewards get the other columns
  prompts.add(R"({"prompt": "p", "system": "be kind", "answer": "four or five"})");
  EXPECT_THAT(prompts.unread_columns(), HasSubstr("columns of text: 'system';"));
  FormatRecognition named("text", {});  // in a named format, and in a later row
  named.add(R"({"text": "t"})");
  named.add(R"({"text": "t", "title": "a title"})");
  EXPECT_THAT(named.unread_columns(), HasSubstr("'title'"));
}

/// The turns are those of LLaMA-Factory's converters (tests/reference/formats/make_formats.py), and rows are left out
/// there and here.
TEST(QuestionRows, PreferencesAreThoseOfLlamaFactory) {
  const Json cases = Json::parse(test::content_of("tests/reference/formats/preferences.json"));
  int left_out = 0;
  for (const Json& entry : cases) {
    const std::string row = entry["row"], format = entry["format"];
    SCOPED_TRACE(row);
    EXPECT_EQ(format_of(row), format);
    const RowDocuments read = RowReader(format, {}, true).read_documents(row);
    ASSERT_EQ(read.left_out.empty(), !entry["response"].is_null()) << read.left_out;
    if (!read.left_out.empty()) {
      ++left_out;
      continue;
    }
    EXPECT_EQ(read.value, entry["label"] == true ? 1 : 0);
    ASSERT_EQ(read.documents.size(), entry["response"].size());
    for (size_t d = 0; d < read.documents.size(); ++d) {
      Json expected = Json::array();
      if (!entry["system"].is_null()) expected.push_back({{"role", "system"}, {"content", entry["system"]}});
      for (const Json& message : entry["prompt"]) expected.push_back(message);
      expected.push_back(entry["response"][d]);
      for (Json& message : expected) {
        if (message["role"] == "observation") message["role"] = "tool";
      }
      const auto& conversation = std::get<Conversation>(read.documents[d]);
      EXPECT_EQ(conversation.messages, expected);
      EXPECT_EQ(conversation.prompt_messages, std::ssize(expected) - 1);
    }
  }
  EXPECT_EQ(left_out, 5);
}

/// LLaMA-Factory's rules: data/converter.py, SharegptDatasetConverter.
TEST(QuestionRows, TurnsThatDoNotAlternateAreLeftOut) {
  const auto why = [](std::string_view format, const std::string& turns, const std::string& rest = "") {
    std::string row;
    for (const char turn : turns) {
      const std::string_view role = turn == 's'   ? "system"
                                    : turn == 'h' ? "human"
                                    : turn == 'g' ? "gpt"
                                    : turn == 'o' ? "observation"
                                                  : "bot";
      row += fmt::format(R"({}{{"from": "{}", "value": "x"}})", row.empty() ? "" : ", ", role);
    }
    const RowDocuments read =
        RowReader(format, {}, true).read_documents(R"({"conversations": [)" + row + "]" + rest + "}");
    EXPECT_EQ(read.documents.empty(), !read.left_out.empty());
    return read.left_out;
  };
  for (const char* turns : {"hg", "shg", "hghg", "og", "hgog", "shghg"}) {
    EXPECT_EQ(why("sharegpt", turns), "") << turns;
    EXPECT_EQ(why("unpaired", turns, R"(, "kto_tag": true)"), "") << turns;
  }
  for (const char* turns : {"gh", "ghg", "h", "hgh", "hhg", "hgg", "hsg", "shgs", "s", "hb"}) {
    EXPECT_THAT(why("sharegpt", turns), HasSubstr("conversations[")) << turns;
    EXPECT_THAT(why("unpaired", turns, R"(, "kto_tag": true)"), HasSubstr("conversations[")) << turns;
  }
  const std::string pair = R"(, "chosen": {"from": "gpt", "value": "a"}, "rejected": {"from": "gpt", "value": "b"})";
  for (const char* turns : {"h", "sh", "hgh", "hgo"}) EXPECT_EQ(why("preference", turns, pair), "") << turns;
  for (const char* turns : {"hg", "gh", "hh", "g", "shgs"}) EXPECT_NE(why("preference", turns, pair), "") << turns;
}

}  // namespace
}  // namespace llmtrain
