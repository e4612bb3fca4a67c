// The template engine: every feature against Jinja2 with Transformers' settings
// (tests/reference/chat/make_expression_goldens.py), its limits, and what it remembers of the text's origin.

#include <gtest/gtest.h>

#include <chrono>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "text/chat/chat_template.hpp"

namespace llmtrain {
namespace {

using nlohmann::ordered_json;

int64_t golden_time() {
  std::tm parts{};
  parts.tm_year = 126;
  parts.tm_mon = 2;
  parts.tm_mday = 4;
  parts.tm_hour = 5;
  parts.tm_min = 6;
  parts.tm_sec = 7;
  parts.tm_isdst = -1;
  return std::mktime(&parts);
}

TEST(Jinja, FeaturesAreThoseOfJinja2) {
  const ordered_json goldens = ordered_json::parse(std::ifstream("tests/reference/chat/expressions.json"));
  Conversation conversation;
  ChatVariables variables;
  for (const auto& [name, value] : goldens["variables"].items()) {
    if (name == "messages") {
      conversation.messages = value;
    } else {
      variables.emplace_back(name, value);
    }
  }
  for (const ordered_json& golden : goldens["cases"]) {
    ordered_json text;
    std::string error;
    try {
      const ChatTemplate chat(golden[0].get<std::string>(), "template");
      text = chat.render(conversation, variables, {false, golden_time()}).text;
    } catch (const UserError& raised) {
      error = raised.what();
    }
    EXPECT_EQ(text, golden[1]) << golden[0] << " " << error;
  }
}

}  // namespace
}  // namespace llmtrain
