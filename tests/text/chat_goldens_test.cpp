// Chat templates against Transformers (tests/reference/chat/make_chat_goldens.py): text and generation ranges of every
// template in TRL's wheel x awkward conversations. The templates are not part of this repository: the folder is
// LLMTRAIN_TRL_TEMPLATES, or that of an installed trl.

#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "text/chat/chat_encoder.hpp"
#include "text/chat/chat_template.hpp"
#include "text/chat/named_templates.hpp"
#include "text/load_tokenizer.hpp"
#include "text/trl_templates.hpp"

namespace llmtrain {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

using test::hash_of;

const std::string folder = "tests/reference/chat/";

ordered_json read_golden(const std::string& name) { return ordered_json::parse(std::ifstream(folder + name)); }

/// The script's clock: 2026-03-04 05:06:07.
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

Conversation conversation_of(const ordered_json& row) {
  Conversation conversation;
  conversation.messages = row["messages"];
  if (row.contains("tools")) conversation.tools = row["tools"];
  return conversation;
}

ChatVariables variables_of(const ordered_json& row) {
  ChatVariables variables = {{"bos_token", "<|endoftext|>"}, {"eos_token", "<|endoftext|>"}};
  if (!row.contains("variables")) return variables;
  for (const auto& [name, value] : row["variables"].items()) variables.emplace_back(name, value);
  return variables;
}

/// Returns what the goldens have: null where the template raises, otherwise hash and ranges in characters.
ordered_json rendered(const ChatTemplate& chat, const ordered_json& row, std::string& text) {
  RenderedChat result;
  try {
    result = chat.render(conversation_of(row), variables_of(row),
                         {row.value("add_generation_prompt", false), golden_time()});
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_content);
    text = error.what();
    return nullptr;
  }
  text = result.text;
  ordered_json ranges = ordered_json::array();
  const auto characters = [&](size_t bytes) {
    return std::count_if(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(bytes),
                         [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
  };
  for (const TextRange& range : result.generated) {
    if (ranges.empty() || ranges.back()[1] != characters(range.begin)) {
      ranges.push_back({characters(range.begin), characters(range.end)});
    } else {
      ranges.back()[1] = characters(range.end);
    }
  }
  return {hash_of(text), ranges};
}

TEST(ChatGoldens, TemplatesOfTrl) {
  const fs::path templates = test::find_trl_templates();
  if (templates.empty()) GTEST_SKIP() << "no trl is installed, and LLMTRAIN_TRL_TEMPLATES names no folder";
  const ordered_json goldens = read_golden("chat_goldens.json"), conversations = read_golden("conversations.json");
  int compared = 0, other_versions = 0, raised = 0, with_ranges = 0;
  for (const auto& [name, golden] : goldens["templates"].items()) {
    const std::string source = test::bytes_of_file(templates / name);
    if (hash_of(source) != golden["source"].get<std::string>()) {
      ++other_versions;
      continue;
    }
    const ChatTemplate chat(source, name);
    for (const auto& [row_name, row] : conversations.items()) {
      std::string text;
      ordered_json expected = golden["rendered"][row_name];
      if (!expected.is_null()) expected = {expected[0], expected[1]};
      EXPECT_EQ(rendered(chat, row, text), expected) << name << " " << row_name << "\n" << text;
      ++compared;
      raised += expected.is_null() ? 1 : 0;
      with_ranges += !expected.is_null() && !expected[1].empty() ? 1 : 0;
    }
  }
  std::printf(
      "%d renderings are those of Transformers; it raises in %d; %d have generation blocks; %d templates are of "
      "another version\n",
      compared, raised, with_ranges, other_versions);
  EXPECT_GT(compared, 0);
}

std::string numbers_of(const EncodedRow& encoded, bool with_mask) {
  std::string numbers;
  for (const int32_t id : encoded.ids) numbers += (numbers.empty() ? "" : " ") + std::to_string(id);
  for (const uint8_t trained : encoded.mask) numbers += !with_mask ? "" : trained != 0 ? " 1" : " 0";
  return numbers;
}

/// Ids and assistant masks by GPT-2's tokenizer.
TEST(ChatGoldens, IdsAndMasksOfTrl) {
  const fs::path templates = test::find_trl_templates();
  if (templates.empty()) GTEST_SKIP() << "no trl is installed, and LLMTRAIN_TRL_TEMPLATES names no folder";
  const char* data = std::getenv("LLMTRAIN_DATA");
  if (data == nullptr) GTEST_SKIP() << "LLMTRAIN_DATA is not set";
  const auto tokenizer = load_tokenizer(std::string(data) + "/tokenizer/gpt2");
  const ordered_json goldens = read_golden("chat_goldens.json"), conversations = read_golden("conversations.json");
  int masks = 0, ids_alone = 0, completions = 0, others = 0;
  for (const auto& [name, golden] : goldens["templates"].items()) {
    if (hash_of(test::bytes_of_file(templates / name)) != golden["source"].get<std::string>()) continue;
    const bool has_generation = ChatTemplate(test::bytes_of_file(templates / name), name).has_generation();
    ChatConfig config;
    config.template_name = (templates / name).string();
    config.variables = {"bos_token:<|endoftext|>"};
    config.parse_special = true;
    for (const auto& [row_name, row] : conversations.items()) {
      const ordered_json& expected = golden["rendered"][row_name];
      const bool has_mask = has_generation && !expected.is_null() && !expected[1].empty();
      if (expected.is_null() || row.contains("add_generation_prompt") || (has_generation && !has_mask)) continue;
      // Transformers writes the list where a template does not read parts; their text is taken instead.
      std::string text;
      rendered(ChatTemplate(test::bytes_of_file(templates / name), name), row, text);
      if (text.find("'type': 'text'") != std::string::npos) continue;
      config.train_on = has_mask ? ChatConfig::TrainOn::assistant : ChatConfig::TrainOn::all;
      EncodedRow encoded;
      ChatEncoder(*tokenizer, config, "", golden_time()).encode(conversation_of(row), encoded);
      std::string numbers = numbers_of(encoded, has_mask);
      EXPECT_EQ(hash_of(numbers), expected[2].get<std::string>()) << name << " " << row_name << " " << numbers;
      ++(has_mask ? masks : ids_alone);
      numbers.back() ^= 1;  // control
      EXPECT_NE(hash_of(numbers), expected[2].get<std::string>());
      if (expected[3].is_null()) continue;
      Conversation divided = conversation_of(row);
      divided.prompt_messages = static_cast<int64_t>(divided.messages.size()) - 1;
      config.train_on = ChatConfig::TrainOn::completion;
      const ChatEncoder encoder(*tokenizer, config, "", golden_time());
      encoder.encode(divided, encoded);
      if (expected[3] == "differs") {
        EXPECT_GT(encoded.trained, 0) << name << " " << row_name;
        ++others;
      } else {
        EXPECT_EQ(hash_of(numbers_of(encoded, true)), expected[3].get<std::string>()) << name << " " << row_name;
        ++completions;
      }
    }
  }
  std::printf(
      "%d rows have the ids and assistant masks of Transformers, %d the ids, %d the completion masks of TRL, of %d "
      "the prompt alone is rendered otherwise\n",
      masks, ids_alone, completions, others);
}

/// A template without generation blocks: rendering prefixes gives the masks of TRL's variant with blocks.
TEST(ChatGoldens, PrefixesGiveTheMasksOfTrainingTemplates) {
  const fs::path templates = test::find_trl_templates();
  if (templates.empty()) GTEST_SKIP() << "no trl is installed, and LLMTRAIN_TRL_TEMPLATES names no folder";
  const auto tokenizer = make_byte_tokenizer();
  const ordered_json conversations = read_golden("conversations.json");
  int compared = 0, refused = 0;
  for (const std::string name : {"llama3", "gemma", "phi3"}) {
    for (const auto& [row_name, row] : conversations.items()) {
      std::vector<uint8_t> masks[2];
      std::string texts[2];
      try {
        for (const bool with_blocks : {true, false}) {
          ChatConfig config;
          config.template_name = (templates / (name + (with_blocks ? "_training.jinja" : ".jinja"))).string();
          config.variables = {"bos_token:<s>", "eos_token:</s>"};
          config.train_on = ChatConfig::TrainOn::assistant;
          EncodedRow encoded;
          ChatEncoder(*tokenizer, config, "").encode(conversation_of(row), encoded);
          masks[with_blocks ? 1 : 0] = encoded.mask;
          texts[with_blocks ? 1 : 0] = encoded.text.text;
        }
      } catch (const UserError&) {
        ++refused;
        continue;
      }
      EXPECT_EQ(texts[0], texts[1]);
      EXPECT_EQ(masks[0], masks[1]) << name << " " << row_name << "\n" << texts[0];
      ++compared;
    }
  }
  std::printf("%d masks by prefixes are those of the blocks, %d rows are refused\n", compared, refused);
  EXPECT_GT(compared, 30);
}

/// The named templates are those of published models where these exist.
TEST(ChatGoldens, NamedTemplates) {
  const ordered_json goldens = read_golden("chat_goldens.json"), conversations = read_golden("conversations.json");
  const std::pair<const char*, const char*> same[] = {{"qwen", "qwen2_5.jinja"},
                                                      {"qwen3", "qwen3.jinja"},
                                                      {"llama3", "llama3.jinja"},
                                                      {"gemma", "gemma.jinja"},
                                                      {"phi3", "phi3.jinja"}};
  for (const auto& [name, published] : same) {
    const ChatTemplate chat(find_named_template(name)->source, name);
    int compared = 0;
    for (const auto& [row_name, row] : conversations.items()) {
      const ordered_json& expected = goldens["templates"][published]["rendered"][row_name];
      std::string text;
      const ordered_json result = rendered(chat, row, text);
      if (expected.is_null() || result.is_null()) continue;  // tools, parts: one of them refuses
      const bool is_defined = row_name != "unknown_role" && row_name != "developer" && row_name != "parts";
      if (!is_defined) continue;
      EXPECT_EQ(result[0], expected[0]) << name << " " << row_name << "\n" << text;
      ++compared;
    }
    EXPECT_GE(compared, 4) << name;
  }
}

}  // namespace
}  // namespace llmtrain
