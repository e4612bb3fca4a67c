// Which turns of a conversation are trained, and where they lie in the text: templates that render a beginning
// otherwise than the whole, flags of turns.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "text/chat/chat_encoder.hpp"
#include "text/chat/named_templates.hpp"
#include "text/load_tokenizer.hpp"
#include "text/trl_templates.hpp"

namespace llmtrain {
namespace {

using nlohmann::ordered_json;
using TrainOn = ChatConfig::TrainOn;
using Texts = std::vector<std::string>;

struct Turn {
  const char *role, *content;
  int flag = -1;  ///< 0 or 1
};

Conversation conversation(std::initializer_list<Turn> turns) {
  Conversation row;
  for (const Turn& turn : turns) {
    ordered_json message = {{"role", turn.role}, {"content", turn.content}};
    if (turn.flag >= 0) message[turn_flag] = turn.flag == 1;
    row.messages.push_back(message);
  }
  return row;
}

ChatConfig config_of(const std::string& name, TrainOn train_on = TrainOn::automatic) {
  ChatConfig config;
  config.template_name = name;
  config.train_on = train_on;
  return config;
}

/// Writes a template and returns its path.
std::string file_of(const std::string& name, const std::string& source) {
  std::string path = testing::TempDir() + "/turns_" + name + ".jinja";
  std::ofstream(path) << source;
  return path;
}

/// Returns the trained stretches of a row as bytes of its text.
std::vector<TextRange> trained_ranges(const EncodedRow& encoded) {
  std::vector<TextRange> found;
  for (size_t i = 0; i < encoded.ids.size(); ++i) {
    if (encoded.mask[i] == 0) continue;
    if (i == 0 || encoded.mask[i - 1] == 0) found.push_back({encoded.ranges[i].begin, 0});
    found.back().end = encoded.ranges[i].end;
  }
  return found;
}

Texts trained(const ChatConfig& config, const Conversation& row) {
  const auto tokenizer = make_byte_tokenizer();
  EncodedRow encoded;
  ChatEncoder(*tokenizer, config, "").encode(row, encoded);
  Texts texts;
  for (const TextRange& range : trained_ranges(encoded))
    texts.push_back(encoded.text.text.substr(range.begin, range.end - range.begin));
  return texts;
}

Texts trained(const std::string& name, const Conversation& row, TrainOn train_on = TrainOn::automatic) {
  return trained(config_of(name, train_on), row);
}

constexpr int64_t golden_time = 1772600767;  ///< 2026-03-04 05:06:07, the clock of the goldens

constexpr const char* drops_thoughts =  // in the manner of DeepSeek and Qwen 3.5
    "{% for m in messages %}{% if m.role == 'assistant' %}<a>\n"
    "{% set c = m.content %}{% if not loop.last %}{% set c = c.split('</t>')[-1] %}{% endif %}{{ c }}<e>"
    "{% else %}<{{ m.role }}>{{ m.content }}<e>{% endif %}{% endfor %}{% if add_generation_prompt %}<a>\n<t>{% endif "
    "%}";

TEST(ChatTurns, ABeginningThatIsRenderedOtherwise) {
  const std::string path = file_of("drops", drops_thoughts);
  const Conversation row = conversation({{"user", "x"},
                                         {"assistant", "<t>why</t>one"},
                                         {"user", "one"},
                                         {"assistant", "one"},
                                         {"assistant", "<t>only</t>"},
                                         {"user", "z"},
                                         {"assistant", "<t>r</t>two"}});
  EXPECT_EQ(trained(path, row), (Texts{"one<e>", "one<e>", "<e>", "<t>r</t>two<e>"}));
  EXPECT_EQ(trained(path, row, TrainOn::last), (Texts{"r</t>two<e>"}));
  Conversation divided = row;
  divided.prompt_messages = 6;
  EXPECT_EQ(trained(path, divided), (Texts{"r</t>two<e>"}));
  divided.prompt_messages = 3;
  EXPECT_EQ(trained(path, divided), (Texts{"one<e><a>\n<e><user>z<e><a>\n<t>r</t>two<e>"}));
  // A template that writes what no message says differently cannot be told apart.
  const std::string counts = file_of("counts", "{% for m in messages %}{{ loop.index }}{{ loop.length }};{% endfor %}");
  EXPECT_THROW(trained(counts, row), UserError);
}

/// The name of a function that the answer of a tool repeats is not part of the call.
TEST(ChatTurns, TextThatIsRepeatedLater) {
  const std::string path = file_of(
      "echo",
      "{% set ns = namespace(name='') %}{% for m in messages %}{% if m.tool_calls %}{% set ns.name = "
      "m.tool_calls[0].function.name %}<a>call {{ ns.name }} {{ m.tool_calls[0].function.arguments | tojson }}<c>"
      "{% elif m.role == 'tool' %}<{{ ns.name }}>{{ m.content }}<e>{% else %}<{{ m.role[0] }}>{{ m.content }}<e>"
      "{% endif %}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}");
  Conversation row = conversation({{"user", "x"}, {"assistant", ""}, {"tool", "out"}, {"assistant", "y"}});
  row.messages[1]["tool_calls"] = {{{"function", {{"name", "f"}, {"arguments", {{"n", 1}}}}}}};
  EXPECT_EQ(trained(path, row), (Texts{"call f {\"n\": 1}<c>", "y<e>"}));
}

TEST(ChatTurns, TheAssistantMaySpeakFirst) {
  const std::string turns = "{% for m in messages %}<{{ m.role[0] }}>\n{{ m.content }}<e>{% endfor %}";
  const std::string asks = "{% if add_generation_prompt %}<a>\n{% endif %}";
  const Conversation row = conversation({{"assistant", "hello"}, {"user", "x"}, {"assistant", "y"}});
  EXPECT_EQ(trained(file_of("first", "<s>" + turns + asks), row), (Texts{"hello<e>", "y<e>"}));
  EXPECT_EQ(trained(file_of("first_thinks", "<s>" + turns + "{% if add_generation_prompt %}<a>\n<t>{% endif %}"), row),
            (Texts{"hello<e>", "y<e>"}));
  EXPECT_EQ(trained(file_of("no_prompt", "<s>" + turns), row)[0], "hello<e>");
}

/// In the manner of Gemma 4: the answers of tools stand inside of the turn that calls, before its content.
TEST(ChatTurns, AnswersOfToolsInsideOfATurn) {
  const std::string path = file_of(
      "inside",
      "{% for m in messages %}{% if m.role != 'tool' %}"
      "{% if m.role != 'assistant' or always or messages[loop.index0 - 1].role != 'tool' %}<{{ m.role[0] }}>\n{% endif "
      "%}"
      "{% set ns = namespace(answers='') %}{% if m.tool_calls %}{% set name = m.tool_calls[0].function.name %}"
      "[call {{ name }}]{% for t in messages[loop.index:] %}{% if t.role == 'tool' %}"
      "{% set ns.answers = ns.answers ~ '(' ~ name ~ ':' ~ t.content ~ ')' %}{% endif %}{% endfor %}{% endif %}"
      "{{ ns.answers }}{{ m.content }}{% if m.tool_calls and not ns.answers %}(open{% elif m.content %};{% endif %}"
      "{% endif %}{% endfor %}{% if add_generation_prompt and messages[-1].role != 'tool' %}<a>\n{% endif %}");
  Conversation row =
      conversation({{"user", "u"}, {"assistant", "text"}, {"tool", "out"}, {"tool", "2"}, {"assistant", "y"}});
  row.messages[1]["tool_calls"] = {{{"function", {{"name", "f"}}}}};
  EXPECT_EQ(trained(path, row), (Texts{"[call f]", "text;y;"}));
  ChatConfig config = config_of(path);
  config.variables = {"always:true"};
  EXPECT_EQ(trained(config, row), (Texts{"[call f]", "text;", "y;"}));
  row.messages[2]["content"] = "";
  EXPECT_EQ(trained(config, row), (Texts{"[call f]", "text;", "y;"}));
  row.messages[3]["content"] = "";
  EXPECT_EQ(trained(config, row), (Texts{"[call f]", "text;", "y;"}));
  row.messages[1]["content"] = "";
  EXPECT_EQ(trained(config, row), (Texts{"[call f]", "y;"}));
  row.messages[2]["content"] = "out";
  EXPECT_EQ(trained(config, row), (Texts{"[call f]", "y;"}));
  EXPECT_EQ(trained(path, row), (Texts{"[call f]", "y;"}));
  row.messages[1][turn_flag] = false;
  EXPECT_EQ(trained(path, row), (Texts{"y;"}));
}

TEST(ChatTurns, Flags) {
  const Conversation row = conversation({{"user", "a"}, {"assistant", "b", 0}, {"user", "c"}, {"assistant", "d"}});
  const Conversation both = conversation({{"user", "a", 1}, {"assistant", "b"}, {"user", "c"}, {"assistant", "d", 1}});
  const Conversation none = conversation({{"user", "a"}, {"assistant", "b", 0}});
  const std::string turn = "{{ m.content }};{% endgeneration %}";
  const std::string blocks =
      file_of("blocks",
              "{% for m in messages %}<{{ m.role }}{{ m.train }}>{% if m.role == 'assistant' %}{% generation "
              "%}{{ m.content }};{% endgeneration %}{% else %}{{ m.content }};{% endif %}{% endfor %}");
  const std::string plain = file_of("plain",
                                    "{% for m in messages %}<{{ m.role }}{{ m.train }}>{{ m.content }};{% endfor %}"
                                    "{% if add_generation_prompt %}<assistant>{% endif %}");
  for (const std::string& path : {blocks, plain}) {
    EXPECT_EQ(trained(path, row), (Texts{"d;"}));
    EXPECT_EQ(trained(path, row, TrainOn::last), (Texts{"d;"}));
    EXPECT_EQ(trained(path, row, TrainOn::all), (Texts{"<user>a;<assistant>", "<user>c;<assistant>d;"}));
    EXPECT_EQ(trained(path, both), (Texts{"a;", "b;", "d;"}));
    EXPECT_EQ(trained(path, both, TrainOn::last), (Texts{"d;"}));
    for (const TrainOn train_on : {TrainOn::assistant, TrainOn::last, TrainOn::completion})
      EXPECT_TRUE(trained(path, none, train_on).empty());
    Conversation divided = row;
    divided.prompt_messages = 1;
    Texts rest = {"<user>c;<assistant>d;"};
    if (path == blocks) rest.insert(rest.begin(), "<assistant>");  // no prompt of generation gives it
    EXPECT_EQ(trained(path, divided), rest);
  }
}

/// A block that says nothing of a turn is of the turn that has no other one.
TEST(ChatTurns, BlocksOfEmptyTurns) {
  const std::string path = file_of("empty_blocks",
                                   "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content "
                                   "}};{% endgeneration %}{% else %}<{{ m.content }}>{% endif %}{% endfor %}");
  const Conversation row = conversation({{"user", "a"},
                                         {"assistant", "", 0},
                                         {"user", "b"},
                                         {"assistant", ""},
                                         {"assistant", "c", 0},
                                         {"assistant", "d"}});
  EXPECT_EQ(trained(path, row), (Texts{";", "d;"}));
}

/// The turns of TRL's templates (tests/reference/chat/make_turn_goldens.py). No conversation that a template renders is
/// refused, and every answer is trained.
TEST(ChatTurns, TemplatesOfTrl) {
  namespace fs = std::filesystem;
  const fs::path templates = test::find_trl_templates();
  if (templates.empty()) GTEST_SKIP() << "no trl is installed, and LLMTRAIN_TRL_TEMPLATES names no folder";
  const ordered_json goldens = ordered_json::parse(std::ifstream("tests/reference/chat/turns.json"));
  ordered_json rows = ordered_json::parse(std::ifstream("tests/reference/chat/conversations.json"));
  for (const auto& [name, row] : goldens["rows"].items()) rows[name] = row;
  const auto tokenizer = make_byte_tokenizer();
  int compared = 0, others = 0;
  for (const auto& entry : fs::directory_iterator(templates)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() != ".jinja" || name.ends_with("_training.jinja")) continue;
    const auto golden = goldens["templates"].find(name);
    const bool is_known =
        golden != goldens["templates"].end() && (*golden)["source"] == test::hash_of_file(entry.path());
    for (const auto& [row_name, row] : rows.items()) {
      if (row.contains("add_generation_prompt")) continue;
      Conversation given;
      given.messages = row["messages"];
      if (row.contains("tools")) given.tools = row["tools"];
      ChatConfig config = config_of(entry.path().string(), TrainOn::all);
      config.variables = {"bos_token:<s>", "eos_token:</s>"};
      const ordered_json variables = row.value("variables", ordered_json::object());
      for (const auto& [variable, value] : variables.items()) config.variables.push_back(variable + ":" + value.dump());
      EncodedRow encoded;
      try {
        ChatEncoder(*tokenizer, config, "", golden_time).encode(given, encoded);
      } catch (const UserError&) {
        continue;  // the template refuses it
      }
      SCOPED_TRACE(name + " " + row_name);
      config.train_on = TrainOn::assistant;
      const bool has_golden = is_known && (*golden)["turns"].contains(row_name);
      try {
        ChatEncoder(*tokenizer, config, "", golden_time).encode(given, encoded);
      } catch (const UserError& error) {
        const bool answers = row["messages"].dump().find("\"assistant\"") != std::string::npos;
        const ordered_json& first = given.messages[0]["content"];  // smolvlm and idefics3 write parts alone
        const bool is_written = !first.is_string() || encoded.text.text.find(first) != std::string::npos;
        EXPECT_TRUE(!is_written || (!has_golden && !answers)) << error.what();
        continue;
      }
      ++others;
      if (!has_golden) continue;
      std::string places;
      for (const TextRange& range : trained_ranges(encoded)) {
        size_t end = range.end;
        while (end > range.begin && std::string_view(" \n").find(encoded.text.text[end - 1]) != std::string::npos)
          --end;
        if (end == range.begin) continue;
        places += (places.empty() ? "" : " ") + std::to_string(range.begin) + " " + std::to_string(end);
      }
      EXPECT_EQ(test::hash_of(places), (*golden)["turns"][row_name].get<std::string>()) << places << "\n"
                                                                                        << encoded.text.text;
      ++compared;
    }
  }
  std::printf("%d of %d conversations have the turns of TRL's training templates\n", compared, others);
  EXPECT_GT(compared, 0);
}

/// The named templates write conversations as their publishers (tests/reference/chat/make_named_goldens.py).
TEST(ChatTurns, NamedTemplatesAreThoseOfTheirPublishers) {
  const ordered_json goldens = ordered_json::parse(std::ifstream("tests/reference/chat/named.json"));
  EXPECT_EQ(goldens["templates"].size(), named_templates().size());
  for (const auto& [name, texts] : goldens["templates"].items()) {
    const ChatTemplate chat(find_named_template(name)->source, name);
    for (const auto& [row_name, expected] : texts.items()) {
      if (expected.is_null()) continue;
      Conversation row;
      row.messages = goldens["rows"][row_name];
      const bool asks = row.messages.back()["role"] == "user";
      EXPECT_EQ(chat.render(row, {{"bos_token", "<s>"}, {"eos_token", "</s>"}}, {asks, 0}).text, expected)
          << name << " " << row_name;
    }
  }
}

TEST(ChatTurns, NamedSpecialTokensAreVariables) {
  const std::string folder = testing::TempDir() + "/turns_tokens";
  std::filesystem::create_directories(folder);
  const auto read = [&](const std::string& config) {
    std::ofstream(folder + "/tokenizer_config.json") << config;
    std::map<std::string, ordered_json> found;
    for (const auto& [name, value] : read_special_tokens(folder)) found.emplace(name, value);
    return found;
  };
  const auto found = read(R"({"bos_token": {"content": "<s>"}, "pad_token": null, "add_bos_token": true,
    "image_token": "<image>", "sep_token": "<old>",
    "extra_special_tokens": {"think": "<think>", "video_token": {"content": "<video>", "lstrip": false},
                             "sep_token": "<new>"},
    "model_specific_special_tokens": {"image_token": "<other>", "audio_token": "<audio>"}})");
  const std::map<std::string, ordered_json> expected = {
      {"bos_token", "<s>"},       {"pad_token", nullptr}, {"image_token", "<image>"}, {"think", "<think>"},
      {"video_token", "<video>"}, {"sep_token", "<new>"}, {"audio_token", "<audio>"}};
  EXPECT_EQ(found, expected);
  EXPECT_TRUE(read(R"({"extra_special_tokens": ["<think>"]})").empty());
  EXPECT_THROW(read(R"({"extra_special_tokens": {"messages": "x"}})"), UserError);
}

/// Integers beyond 64 bits keep their digits in templates and in variables of the deck.
TEST(ChatTurns, IntegersBeyond64Bits) {
  ChatConfig config = config_of(
      file_of("digits", "{{ messages[0].n | tojson }} {{ limit }} {{ messages[0].n > limit }}"), TrainOn::all);
  config.variables = {"limit:340282366920938463463374607431768211455"};
  Conversation row = conversation({{"user", "x"}});
  row.messages[0]["n"] = uint64_t{18446744073709551615U};
  EXPECT_EQ(trained(config, row), (Texts{"18446744073709551615 340282366920938463463374607431768211455 False"}));
}

}  // namespace
}  // namespace llmtrain
