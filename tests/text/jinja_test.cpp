// The template engine: every feature against Jinja2 with Transformers' settings
// (tests/reference/chat/make_expression_goldens.py), its limits, and what it remembers of the text's origin.

#include <gtest/gtest.h>

#include <chrono>
#include <ctime>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/files/json_reader.hpp"
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
  return timegm(&parts);
}

TEST(Jinja, FeaturesAreThoseOfJinja2) {
  std::ifstream file("tests/reference/chat/expressions.json");
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const ordered_json goldens = parse_ordered_json(bytes, {}, 1000);  // integers keep their digits
  Conversation conversation;
  ChatVariables variables;
  for (const auto& [name, value] : goldens["variables"].items()) {
    if (name == "messages") {
      conversation.messages = value;
    } else {
      variables.emplace_back(name, value);
    }
  }
  std::string error;
  const auto render = [&](const ordered_json& golden) {
    try {
      error.clear();
      const ChatTemplate chat(golden[0].get<std::string>(), "template");
      return ordered_json(chat.render(conversation, variables, {false, golden_time()}).text);
    } catch (const UserError& raised) {
      error = raised.what();
      return ordered_json();
    }
  };
  for (const ordered_json& golden : goldens["cases"]) {
    EXPECT_EQ(render(golden), golden[1]) << golden[0] << " " << error;
  }
  EXPECT_GT(goldens["left_out"].size(), 50U);
  for (const ordered_json& golden : goldens["left_out"]) {
    EXPECT_EQ(render(golden), nullptr) << golden[0];
    const bool is_named =
        error.find("is not supported") != std::string::npos || error.find("undefined") != std::string::npos;
    EXPECT_TRUE(is_named || golden[1].is_null()) << golden[0] << " " << error;
  }
}

/// Jinja2 renders these; another text than its own would be worse than an error.
TEST(Jinja, WhatIsNotSupportedIsAnErrorWithItsLine) {
  Conversation conversation;
  conversation.messages = {{{"role", "user"}, {"content", "x"}}};
  for (const char* expression :
       {"range(3)", "'a'.upper", "namespace(a=1)", "self", "lipsum is defined", "'a'.encode()", "'{}'.format(1)",
        "'%s' % 1", "[1] | random", "1 is upper", "loop", "18446744073709551616 + 1", "18446744073709551616 % 2"}) {
    std::string error;
    try {
      const std::string text = std::string("a\n{% for x in [1] %}{{ ") + expression + " }}{% endfor %}";
      ChatTemplate(text, "template").render(conversation, {}, {false, 0});
    } catch (const UserError& raised) {
      error = raised.what();
    }
    EXPECT_EQ(error.find("template:2: "), 0U) << expression << " " << error;
  }
}

std::string repeated(std::string_view text, size_t times) {
  std::string all;
  for (size_t i = 0; i < times; ++i) all += text;
  return all;
}

/// A template is hostile input: each of these ends with an error, on an idle processor in half a second.
TEST(Jinja, HostileTemplatesEnd) {
  const std::string templates[] = {
      "{% for i in range(1000000000) %}x{% endfor %}",
      "{{ 'a' * 10 ** 9 }}",
      "{{ [1] * 10 ** 15 }}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
      "{{ " + repeated("(", 20000) + "1" + repeated(")", 20000) + " }}",
      "{{ 1" + repeated("+1", 100000) + " }}",
      "{{ x" + repeated(".a", 100000) + " }}",
      "{{ " + repeated("not ", 100000) + "1 }}",
      "{{ 1" + repeated("|string", 100000) + " }}",
      repeated("{% if 1 %}", 50000),
      repeated("{% for a in b %}", 50000),
      "{% set n = namespace(s='x') %}{% for i in range(100) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
      "{% set n = namespace(s=[1]) %}{% for i in range(100) %}{% set n.s = n.s + n.s %}{% endfor %}",
      "{% set n = namespace(s=[1]) %}{% for i in range(9999) %}{% set n.s = [n.s] %}{% endfor %}",
      "{% set n = namespace(s=[1]) %}{% for i in range(50) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s }}",
      "{% set n = namespace(s=[1]) %}{% for i in range(50) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s | tojson }}",
      "{% set n = namespace(s=1) %}{% for i in range(99999) %}{% set n.s = [n.s].count %}{% endfor %}",
      "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
      "{{ 'ab' * 1000000 is in 1 }}",
      "{% for i in range(99999) %}{{ ('ab' * 1000000).find('ba' * 900000 ~ 'c') }}{% endfor %}",
      "{% for i in range(99999) %}{{ ('a' * 1000000).rfind('b' ~ 'a' * 1000) }}{% endfor %}",
      "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
      "{% set l = ['a' * 1000000] * 50000 %}{{ l | sort | length }}",
      "{% set x = ' ' * 10000000 %}{% for i in range(99999) %}{{ x.strip() }}{% endfor %}",
      "{% set x = 'a' * 10000000 %}{{ x.startswith(('a' * 9999999 ~ 'b',) * 500000) }}",
      "{% set x = 'a' * 10000000 %}{% for i in range(99999) %}{{ messages[0][x] }}{% endfor %}",
      "{% set x = 'a' * 10000000 %}{% for i in range(99999) %}{{ x | int }}{% endfor %}",
      "{% macro m() %}{{ 1 if kwargs }}{% endmacro %}{% for i in range(99999) %}{{ m(**{'a' * 10 ** 7: 1}) }}{% endfor "
      "%}",
      "{{ ('\n' * 1000000) | indent(10000, true, true) }}",
      "{% for i in range(99999) %}{{ strftime_now('%c' * 100) }}{% endfor %}",
      "{{ 2 ** 64 }}",
      "{{ -9223372036854775807 - 2 }}",
      "{{ 1 // 0 }}",
      "{{ ''.__class__.__mro__ }}",
      "{{ messages.append(1) }}"};
  Conversation conversation;
  conversation.messages.push_back({{"role", "user"}, {"content", "hi"}});
  for (const std::string& source : templates) {
    const auto start = std::chrono::steady_clock::now();
    try {
      const ChatTemplate chat(source, "t.jinja");
      ADD_FAILURE() << source.substr(0, 100) << " gives " << chat.render(conversation, {}).text.size() << " bytes";
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_content);
      EXPECT_TRUE(std::string_view(error.what()).starts_with("t.jinja:")) << error.what();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10)) << source.substr(0, 100);
  }
}

/// Values that refer to each other in a circle or in a long chain are freed, without a deep recursion.
TEST(Jinja, LongChainsEnd) {
  Conversation conversation;
  conversation.messages.push_back({{"role", "user"}, {"content", "hi"}});
  for (const char* source :
       {"{% set n = namespace(x=1) %}{% for i in range(90000) %}{% set m = namespace(x=n.x) %}{% set n.x = m %}"
        "{% endfor %}ok",
        "{% set n = namespace(x=1) %}{% for i in range(90000) %}{% set p = n.x %}{% macro g() %}{{ p }}{% endmacro %}"
        "{% set n.x = g %}{% endfor %}ok",
        "{% set n = namespace() %}{% set n.a = n %}{% set n.b = [n] %}ok"}) {
    EXPECT_EQ(ChatTemplate(source, "t").render(conversation, {}).text, "ok");
  }
}

std::vector<std::string> parts(const RenderedChat& chat, const std::vector<TextRange>& ranges) {
  std::vector<std::string> found;
  found.reserve(ranges.size());
  for (const TextRange& range : ranges) found.push_back(chat.text.substr(range.begin, range.end - range.begin));
  return found;
}

/// The text knows which of its bytes are content of the row, through what a template does with them.
TEST(Jinja, ContentIsKnownInTheText) {
  Conversation conversation;
  conversation.messages.push_back({{"role", "user"}, {"content", " <a>b</a> "}});
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {"<a>{{ messages[0].content }}</a>", {" <a>b</a> "}},
      {"{{ '[' + messages[0].content | trim + ']' }}", {"<a>b</a>"}},
      {"{{ messages[0].content.split('</a>') | join('</a>') }}", {" <a>b", " "}},
      {"{{ messages[0].content.replace('b', '</a>') }}", {" <a>", "</a> "}},
      {"{{ messages[0].content[1:4] ~ '-' ~ messages[0].content | upper }}", {"<a>", " <A>B</A> "}},
      {"{% set x %}<{{ messages[0].content }}>{% endset %}{{ x }}{{ x | length }}", {" <a>b</a> "}},
      {"{% macro m(c) %}({{ c }}){% endmacro %}{{ m(messages[0].content) ~ '!' }}", {" <a>b</a> "}},
      {"{{ messages[0].content.split('b')[0] }}{{ '</a>' }}", {" <a>"}},
      {"{{ {'c': messages[0].content} | tojson }}", {"{\"c\": \" <a>b</a> \"}"}},
      {"{{ messages[0].content[1:3] }}{{ messages[0].content[3:4] }}", {"<a>"}},
      {"{{ messages[0].content.title() ~ '!' }}", {" <A>B</A> "}}};
  for (const auto& [source, expected] : cases) {
    const RenderedChat chat = ChatTemplate(source, "t").render(conversation, {});
    EXPECT_EQ(parts(chat, chat.content), expected) << source << " " << chat.text;
  }
  const RenderedChat chat = ChatTemplate(
                                "a{% macro m() %}x{% generation %}{{ messages[0].content | trim }}!{% endgeneration "
                                "%}{% endmacro %}{{ m() }}",
                                "t")
                                .render(conversation, {});
  EXPECT_EQ(parts(chat, chat.generated), std::vector<std::string>{"<a>b</a>!"});
}

}  // namespace
}  // namespace llmtrain
