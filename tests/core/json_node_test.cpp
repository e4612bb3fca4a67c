#include "core/files/json_node.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "core/error.hpp"

namespace llmtrain {
namespace {

std::string refusal(const std::function<void(const JsonNode&)>& read) {
  const nlohmann::json document = parse_json(
      R"({"a": {"b": [1, "x", 1.5, -3, 18446744073709551615]}, "t": "text", "n": null, "s": true, "l\n": 1})",
      "f.json");
  try {
    read(JsonNode(document, "f.json"));
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_content);
    return error.what();
  }
  return "accepted";
}

TEST(JsonNode, ErrorsNameTheKeyWhatIsExpectedAndWhatIsFound) {
  const auto item = [](const JsonNode& root, size_t i) { return root.at("a").at("b").at(i); };
  EXPECT_EQ(refusal([&](const auto& j) { EXPECT_EQ(item(j, 0).integer_between(1, 5), 1); }), "accepted");
  EXPECT_EQ(refusal([&](const auto& j) { item(j, 0).integer_between(2, 5); }),
            "f.json.a.b[0]: must be an integer from 2 to 5, not 1");
  EXPECT_EQ(refusal([&](const auto& j) { item(j, 1).number(); }), "f.json.a.b[1]: must be a number, not 'x'");
  EXPECT_EQ(refusal([&](const auto& j) { item(j, 2).count(9); }),
            "f.json.a.b[2]: must be an integer from 0 to 9, not 1.5");
  EXPECT_EQ(refusal([&](const auto& j) { item(j, 3).count(9); }),
            "f.json.a.b[3]: must be an integer from 0 to 9, not -3");
  EXPECT_EQ(refusal([&](const auto& j) { item(j, 4).count(); }),
            "f.json.a.b[4]: must be an integer from 0 to 9223372036854775807, not 18446744073709551615");
  EXPECT_EQ(refusal([&](const auto& j) { item(j, 5); }), "f.json.a.b: has no item 5");
  EXPECT_EQ(refusal([](const auto& j) { j.at("s").text(); }), "f.json.s: must be a text, not true");
  EXPECT_EQ(refusal([](const auto& j) { j.at("t").boolean(); }), "f.json.t: must be true or false, not 'text'");
  EXPECT_EQ(refusal([](const auto& j) { j.at("a").at("c"); }), "f.json.a.c: is missing");
  EXPECT_EQ(refusal([](const auto& j) { j.at("t").at("c"); }), "f.json.t: must be an object");
  EXPECT_EQ(refusal([](const auto& j) { j.at("t").array(); }), "f.json.t: must be a list");
  EXPECT_EQ(refusal([](const auto& j) { JsonNode(j.value(), "").at("a").at("b").text(); }),
            "a.b: must be a text, not [1,\"x\",1.5,-3,18446744073709551615]");
}

TEST(JsonNode, KeysAreComplete) {
  EXPECT_EQ(refusal([](const auto& j) { j.check_keys({"a", "t", "s"}, {"n", "l\n", "more"}); }), "accepted");
  EXPECT_EQ(refusal([](const auto& j) { j.check_keys({"a", "t", "s", "u"}, {"n", "l\n"}); }), "f.json.u: is missing");
  EXPECT_EQ(refusal([](const auto& j) { j.allow({"a", "t", "n", "l\n"}); }), "f.json: the key s is not supported");
  EXPECT_EQ(refusal([](const auto& j) {
              EXPECT_FALSE(j.has("n") || j.has("missing"));
              EXPECT_EQ(j.text_or("n", "otherwise") + j.text_or("t", ""), "otherwisetext");
              EXPECT_TRUE(j.boolean_or("s", false) && j.boolean_or("missing", true));
            }),
            "accepted");
  std::string members;
  EXPECT_EQ(
      refusal([&](const auto& j) {
        j.each_member([&](const std::string& name, const JsonNode& node) { members += name + "=" + node.where(); });
      }),
      "accepted");
  EXPECT_THAT(members, testing::StartsWith("a=f.json.'a'l\n=f.json.'l\\x0a'n="));
}

}  // namespace
}  // namespace llmtrain
