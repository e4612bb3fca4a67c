// Rows of instruction data as ids and masks.

#include "text/chat/chat_encoder.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/deck/deck.hpp"
#include "core/error.hpp"
#include "text/load_tokenizer.hpp"

namespace llmtrain {
namespace {

using nlohmann::ordered_json;
using TrainOn = ChatConfig::TrainOn;

Conversation conversation(std::initializer_list<std::pair<const char*, const char*>> turns) {
  Conversation row;
  for (const auto& [role, content] : turns) row.messages.push_back({{"role", role}, {"content", content}});
  return row;
}

ChatConfig config_of(const std::string& name, TrainOn train_on = TrainOn::automatic) {
  ChatConfig config;
  config.template_name = name;
  config.train_on = train_on;
  return config;
}

/// Returns the text of the trained tokens, one text for each stretch of them.
std::vector<std::string> trained(const ChatEncoder& encoder, const InstructionRow& row) {
  EncodedRow encoded;
  encoder.encode(row, encoded);
  std::vector<std::string> found;
  for (size_t i = 0; i < encoded.ids.size(); ++i) {
    if (encoded.mask[i] == 0) continue;
    if (i == 0 || encoded.mask[i - 1] == 0) found.emplace_back();
    found.back() += encoded.text.text.substr(encoded.ranges[i].begin, encoded.ranges[i].end - encoded.ranges[i].begin);
  }
  return found;
}

using Texts = std::vector<std::string>;

TEST(ChatEncoder, TrainOn) {
  const auto tokenizer = make_byte_tokenizer();
  Conversation row = conversation({{"user", "a"}, {"assistant", "b"}, {"user", "c"}, {"assistant", "d"}});
  EXPECT_EQ(trained(ChatEncoder(*tokenizer, config_of("chatml"), ""), row), (Texts{"b<|im_end|>", "d<|im_end|>"}));
  EXPECT_EQ(trained(ChatEncoder(*tokenizer, config_of("chatml", TrainOn::last), ""), row), (Texts{"d<|im_end|>"}));
  EXPECT_EQ(trained(ChatEncoder(*tokenizer, config_of("chatml", TrainOn::all), ""), row).size(), 1u);
  row.prompt_messages = 1;
  EXPECT_EQ(trained(ChatEncoder(*tokenizer, config_of("chatml"), ""), row),
            (Texts{"b<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\nd<|im_end|>\n"}));
  EXPECT_THROW(trained(ChatEncoder(*tokenizer, config_of("chatml"), ""), conversation({{"user", "a"}})), UserError);
  EXPECT_THROW(trained(ChatEncoder(*tokenizer, config_of("none"), ""), row), UserError);
  EXPECT_THROW(trained(ChatEncoder(*tokenizer, config_of("gemma"), ""), conversation({{"assistant", "a"}})), UserError);
}

/// The masks of a template without generation blocks are those of the same template with them.
TEST(ChatEncoder, PrefixesGiveTheMasksOfGenerationBlocks) {
  const auto tokenizer = make_byte_tokenizer();
  const std::string folder = testing::TempDir() + "/chat_prefixes";
  std::filesystem::create_directories(folder);
  const auto write = [&](const std::string& name, const std::string& source) {
    std::ofstream(folder + "/" + name) << source;
    return folder + "/" + name;
  };
  const std::string before = "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}";
  const std::string after =
      "{% else %}{{ m.content }};{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
  const std::string plain = write("plain.jinja", before + "{{ m.content }};" + after);
  const std::string blocks =
      write("blocks.jinja", before + "{% generation %}{{ m.content }};{% endgeneration %}" + after);
  const Conversation row =
      conversation({{"system", "s"}, {"user", "a"}, {"assistant", "b"}, {"user", "c"}, {"assistant", "d"}});
  for (const TrainOn train_on : {TrainOn::assistant, TrainOn::last}) {
    const Texts expected = trained(ChatEncoder(*tokenizer, config_of(blocks, train_on), ""), row);
    EXPECT_EQ(expected.back(), "d;");
    EXPECT_EQ(trained(ChatEncoder(*tokenizer, config_of(plain, train_on), ""), row), expected);
  }
  // A template that counts its messages renders no prefix as in the whole.
  const std::string counts = write("counts.jinja", "{{ messages | length }}" + before + "{{ m.content }};" + after);
  EXPECT_EQ(trained(ChatEncoder(*tokenizer, config_of(counts), ""), row), (Texts{"b;", "d;"}));
}

/// Turns end where they do in the same template with generation blocks: a text for the end of the conversation is no
/// part of them, even if it begins like the next header, nor is the stop token's text in the content.
TEST(ChatEncoder, TurnsEndBeforeWhatFollowsTheConversation) {
  const auto tokenizer = make_byte_tokenizer();
  const auto file_of = [](const std::string& name, const std::string& turn) {
    const std::string path = testing::TempDir() + "/chat_turns_" + name + ".jinja";
    std::ofstream(path) << "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}" + turn +
                               "{% else %}{{ m.content }}<|end|>\n{% endif %}{% endfor %}"
                               "{% if add_generation_prompt %}<|assistant|>{% else %}{{ eos_token }}{% endif %}";
    return path;
  };
  const std::string content = "{% if loop.last %}<think></think>{% endif %}{{ m.content.split('R')[-1] }}<|end|>";
  const std::string plain = file_of("plain", content + "\n");
  const std::string blocks = file_of("blocks", "{% generation %}" + content + "{% endgeneration %}\n");
  const std::initializer_list<std::pair<const char*, const char*>> rows[] = {
      {{"user", "a"}, {"assistant", "b <|end|> b"}, {"user", "c"}, {"assistant", "d"}, {"user", "secret"}},
      {{"user", "a"}, {"assistant", "<|end|>R"}, {"user", "c"}, {"assistant", "<|end|>Rb<|end|>"}, {"user", "e"}}};
  for (const auto& turns : rows) {
    for (const TrainOn train_on : {TrainOn::assistant, TrainOn::last}) {
      const auto trained_by = [&](const std::string& path) {
        ChatConfig config = config_of(path, train_on);
        config.variables = {"eos_token:<|endoftext|>"};
        Texts texts = trained(ChatEncoder(*tokenizer, config, ""), conversation(turns));
        for (std::string& text : texts) text.erase(text.find_last_not_of('\n') + 1);
        return texts;
      };
      const Texts expected = trained_by(blocks);
      EXPECT_TRUE(expected.back().ends_with("<|end|>")) << expected.back();
      EXPECT_EQ(trained_by(plain), expected);
    }
  }
}

/// A stop is a special token that the template writes after the content, not one in the content or before it.
TEST(ChatEncoder, Stops) {
  const char* data = std::getenv("LLMTRAIN_DATA");
  if (data == nullptr) GTEST_SKIP() << "LLMTRAIN_DATA is not set";
  const auto tokenizer = load_tokenizer(std::string(data) + "/tokenizer/llama2");
  const std::string path = testing::TempDir() + "/chat_stops.jinja";
  const auto stops = [&](const std::string& before, const std::string& after, TrainOn train_on) {
    std::ofstream(path) << "{% for m in messages %}{{ m.role }}: " + before + "{{ m.content }}" + after +
                               "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";
    Conversation row = conversation({{"user", "a"}, {"assistant", "b </s>"}});
    row.prompt_messages = 1;
    EncodedRow encoded;
    ChatEncoder(*tokenizer, config_of(path, train_on), "").encode(row, encoded);
    EXPECT_TRUE(!encoded.stops() || encoded.stop == tokenizer->eos_id());
    return encoded.stops();
  };
  for (const TrainOn train_on : {TrainOn::assistant, TrainOn::completion, TrainOn::all}) {
    EXPECT_TRUE(stops("", "</s>", train_on));
    EXPECT_TRUE(stops("", "</s>\n", train_on));
    EXPECT_TRUE(stops("", "</s>\n<s>", train_on));
    EXPECT_FALSE(stops("", "\n", train_on));
    EXPECT_FALSE(stops("", "", train_on));
  }
}

/// A template that reads parts gets them; another one gets their text, not the list in Python's writing.
TEST(ChatEncoder, PartsOfContent) {
  const auto tokenizer = make_byte_tokenizer();
  const std::string path = testing::TempDir() + "/chat_parts.jinja";
  Conversation row = conversation({{"user", ""}, {"assistant", ""}});
  for (ordered_json& message : row.messages) {
    message["content"] = {{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}};
  }
  const std::pair<const char*, const char*> contents[] = {
      {"{% for p in m.content %}({{ p.text }}){% endfor %}", "(a)(b);(a)(b);"},
      {"{{ m.content }}", "ab;ab;"},
      {"{{ m.content + '!' }}", "ab!;ab!;"}};
  for (const auto& [content, expected] : contents) {
    std::ofstream(path) << "{% for m in messages %}" << content << ";{% endfor %}";
    EncodedRow encoded;
    ChatEncoder(*tokenizer, config_of(path, TrainOn::all), "").encode(row, encoded);
    EXPECT_EQ(encoded.text.text, expected);
  }
}

TEST(ChatEncoder, SystemAndVariables) {
  const auto tokenizer = make_byte_tokenizer();
  ChatConfig config = config_of("qwen3", TrainOn::all);
  config.system = "Be kind.";
  config.enable_thinking = ChatConfig::Thinking::off;
  EncodedRow encoded;
  ChatEncoder(*tokenizer, config, "").encode(conversation({{"user", "a"}, {"assistant", "b"}}), encoded);
  EXPECT_EQ(encoded.text.text,
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<think>\n\n"
            "</think>\n\nb<|im_end|>\n");
  config.variables = {"n:3", "flag:true", "word:x y", "url:a:b"};
  const ChatVariables variables = config.template_variables();
  EXPECT_EQ(variables[1].second, 3);
  EXPECT_EQ(variables[2].second, true);
  EXPECT_EQ(variables[3].second, "x y");
  EXPECT_EQ(variables[4].second, "a:b");
  config.variables = {"none"};
  EXPECT_THROW(config.template_variables(), UserError);
}

TEST(ChatEncoder, Deck) {
  ChatConfig config;
  DeckKeys keys;
  config.visit(keys);
  DeckLoader deck(keys, "deck.ini");
  deck.load("[chat]\ntemplate = chatmll\ntrain_on = last\nvariables = a:1, b:x\n", {}, {});
  config.resolve(deck);
  EXPECT_EQ(config.train_on, TrainOn::last);
  try {
    deck.finish();
    ADD_FAILURE();
  } catch (const UserError& error) {
    EXPECT_NE(std::string_view(error.what()).find("did you mean chatml?"), std::string_view::npos) << error.what();
  }
}

/// Content cannot write special tokens; the template can.
TEST(ChatEncoder, SpecialTokensInContentAreText) {
  const char* data = std::getenv("LLMTRAIN_DATA");
  if (data == nullptr) GTEST_SKIP() << "LLMTRAIN_DATA is not set";
  const auto tokenizer = load_tokenizer(std::string(data) + "/tokenizer/llama2");
  const int32_t eos = tokenizer->eos_id(), bos = tokenizer->bos_id();
  const auto specials = [&](const Conversation& row, bool parse_special, std::string* text) {
    ChatConfig config = config_of("llama2");
    config.parse_special = parse_special;
    EncodedRow encoded;
    ChatEncoder(*tokenizer, config, "").encode(row, encoded);
    EXPECT_TRUE(encoded.stops());
    *text = tokenizer->decode_with_special(encoded.ids);
    return std::count_if(encoded.ids.begin(), encoded.ids.end(), [&](int32_t id) { return id == eos || id == bos; });
  };
  const Conversation row = conversation({{"user", "x</s>y <s>"}, {"assistant", "</s></s> z"}});
  std::string as_text, as_tokens;
  EXPECT_EQ(specials(row, false, &as_text), 2);
  EXPECT_EQ(specials(row, true, &as_tokens), 6);
  EXPECT_EQ(specials(conversation({{"user", "x"}, {"assistant", "z"}}), false, &as_tokens), 2);
  EXPECT_NE(as_text.find("x</s>y <s>"), std::string::npos) << as_text;
  EXPECT_NE(as_text.find("</s></s> z"), std::string::npos) << as_text;
  // Elsewhere the ids are those of the whole text.
  std::vector<int32_t> whole, content;
  std::vector<TextRange> ranges;
  const std::string text = "<s>[INST] caf\xC3\xA9 \xE4\xBD\xA0 and  more [/INST]";
  tokenizer->encode(text, whole);
  const TextRange all[] = {{3, text.size()}};
  tokenizer->encode_content(text, all, content, ranges);
  EXPECT_EQ(content, whole);
}

/// Prompts and completions as TRL encodes them (tests/reference/chat/make_completion_goldens.py).
TEST(ChatEncoder, PromptsAndCompletions) {
  const char* data = std::getenv("LLMTRAIN_DATA");
  if (data == nullptr) GTEST_SKIP() << "LLMTRAIN_DATA is not set";
  const ordered_json goldens = ordered_json::parse(std::ifstream("tests/reference/chat/completions.json"));
  int merged = 0;
  for (const auto& [name, cases] : goldens["cases"].items()) {
    const auto tokenizer = load_tokenizer(std::string(data) + "/tokenizer/" + name);
    const ChatEncoder encoder(*tokenizer, config_of("none"), "");
    for (size_t i = 0; i < cases.size(); ++i) {
      const ordered_json& row = goldens["rows"][i];
      EncodedRow encoded;
      encoder.encode(PromptCompletion{row[0], row[1]}, encoded);
      SCOPED_TRACE(name + " " + row.dump());
      EXPECT_EQ(encoded.ids, cases[i]["ids"].get<std::vector<int32_t>>());
      const size_t prompt =
          row[0] == "" ? 0 : cases[i]["prompt"].get<size_t>();  // without one, BOS is not a target either
      std::vector<uint8_t> mask(encoded.ids.size(), 1);
      std::fill(mask.begin(), mask.begin() + static_cast<std::ptrdiff_t>(prompt), uint8_t{0});
      EXPECT_EQ(encoded.mask, mask);
      EXPECT_EQ(encoded.merged_border, cases[i]["prompt"] < cases[i]["prompt_alone"] && row[0] != "");
      EXPECT_TRUE(encoded.stops());
      merged += encoded.merged_border ? 1 : 0;
    }
  }
  EXPECT_GT(merged, 4);
}

TEST(ChatEncoder, PlainText) {
  const auto tokenizer = make_byte_tokenizer(true);
  EncodedRow encoded;
  ChatEncoder(*tokenizer, ChatConfig(), "").encode(PlainText{"ab"}, encoded);
  EXPECT_EQ(encoded.ids.back(), tokenizer->eos_id());
  EXPECT_EQ(encoded.trained, static_cast<int64_t>(encoded.ids.size()));
  EXPECT_TRUE(encoded.stops());
}

/// A BOS that the row writes is the token, once, whether or not the tokenizer adds one, as Transformers encodes the
/// text of apply_chat_template without special tokens.
TEST(ChatEncoder, BosOfARowIsTheTokenOnce) {
  const char* data = std::getenv("LLMTRAIN_DATA");
  if (data == nullptr) GTEST_SKIP() << "LLMTRAIN_DATA is not set";
  const std::string gpt2 = testing::TempDir() + "/chat_gpt2";
  std::filesystem::remove_all(gpt2);
  std::filesystem::copy(std::string(data) + "/tokenizer/gpt2", gpt2);
  std::ofstream(gpt2 + "/tokenizer_config.json")
      << R"({"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "tokenizer_class": "GPT2Tokenizer"})";
  for (const std::string& name : {std::string(data) + "/tokenizer/llama2", gpt2}) {  // the second one adds none
    const auto tokenizer = load_tokenizer(name);
    const std::string bos = tokenizer->token(tokenizer->bos_id());
    for (const bool parse_special : {false, true}) {
      SCOPED_TRACE(name + (parse_special ? " parsed" : ""));
      ChatConfig config = config_of("none");
      config.parse_special = parse_special;
      const ChatEncoder encoder(*tokenizer, config, "");
      std::vector<int32_t> expected;
      tokenizer->encode(bos + "hello world", expected);
      ASSERT_EQ(expected.front(), tokenizer->bos_id());
      EXPECT_EQ(encoder.encode_prompt(bos + "hello world"), expected);
      expected.push_back(tokenizer->eos_id());
      EncodedRow encoded;
      encoder.encode(PlainText{bos + "hello world"}, encoded);
      EXPECT_EQ(encoded.ids, expected);
      encoder.encode(PromptCompletion{bos + "hello", " world"}, encoded);
      EXPECT_EQ(encoded.ids, expected);
      EXPECT_EQ(encoded.trained, 2);
    }
    std::vector<int32_t> plain;
    tokenizer->encode("hello", plain);
    EXPECT_EQ(ChatEncoder(*tokenizer, config_of("none"), "").encode_prompt("hello").size(),
              plain.size() + (name == gpt2 ? 0 : 1));
  }
}

/// completion is last where the row is not divided; the last turn is found also where turns follow each other at once.
TEST(ChatEncoder, LastTurn) {
  const auto tokenizer = make_byte_tokenizer();
  const std::string path = testing::TempDir() + "/chat_last.jinja";
  std::ofstream(path) << "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }};"
                         "{% endgeneration %}{% else %}<{{ m.content }}>{% endif %}{% endfor %}";
  const Conversation row = conversation({{"assistant", "z"}, {"user", "a"}, {"assistant", "b"}, {"assistant", "c"}});
  for (const TrainOn train_on : {TrainOn::last, TrainOn::completion}) {
    EXPECT_EQ(trained(ChatEncoder(*tokenizer, config_of(path, train_on), ""), row), (Texts{"c;"}));
    // The newline after the stop token is trained only as a part of a completion.
    const Conversation plain = conversation({{"user", "a"}, {"assistant", "b"}});
    const char* data = std::getenv("LLMTRAIN_DATA");
    if (data == nullptr) continue;
    const auto gpt2 = load_tokenizer(std::string(data) + "/tokenizer/gpt2");
    const auto chat = with_added_tokens(*gpt2, {"<|im_start|>", "<|im_end|>"});
    EXPECT_EQ(trained(ChatEncoder(*chat, config_of("chatml", train_on), ""), plain), (Texts{"b<|im_end|>"}));
  }
  EXPECT_EQ(trained(ChatEncoder(*tokenizer, config_of(path), ""), row), (Texts{"z;", "b;c;"}));
}

/// The model's template comes before the tokenizer's; all of it survives the way to other ranks and into checkpoints.
TEST(ChatEncoder, FilesOfARun) {
  const std::string model = testing::TempDir() + "/chat_model", other = testing::TempDir() + "/chat_tokenizer";
  for (const std::string& folder : {model, other}) std::filesystem::create_directories(folder);
  std::ofstream(model + "/chat_template.jinja") << "{{ pad_token }}{{ messages[0].content }}|";
  std::ofstream(other + "/tokenizer_config.json") << R"({"chat_template": "theirs", "pad_token": "<p>"})";
  const ChatFiles files = parse_chat_files(serialize(read_chat_files("auto", model, other)), "");
  const auto tokenizer = make_byte_tokenizer();
  const ChatEncoder encoder(*tokenizer, config_of("auto"), files);
  EXPECT_EQ(tokenizer->decode(encoder.encode_prompt("hi")), "<p>hi|");
  EXPECT_EQ(read_chat_files("auto", "gone", other).templates.front().source, "theirs");
  EXPECT_TRUE(read_chat_files("auto", "gone", "").templates.empty());
  EXPECT_THROW(parse_chat_files("{}", "chat.json"), UserError);
}

/// Templates in a model folder, in every place that Transformers reads.
TEST(ChatEncoder, TemplatesOfAFolder) {
  const std::string folder = testing::TempDir() + "/chat_folder";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const auto tokenizer = make_byte_tokenizer();
  const auto text_of = [&](bool with_tools) {
    Conversation row = conversation({{"user", "a"}, {"assistant", "b"}});
    if (with_tools) row.tools = ordered_json::array({{{"name", "t"}}});
    EncodedRow encoded;
    ChatEncoder(*tokenizer, config_of("auto", TrainOn::all), folder).encode(row, encoded);
    return encoded.text.text;
  };
  EXPECT_THROW(text_of(false), UserError);
  std::ofstream(folder + "/tokenizer_config.json") << R"({"chat_template": "one{{ eos_token }}", "eos_token": "<e>"})";
  EXPECT_EQ(text_of(false).substr(0, 3), "one");
  std::ofstream(folder + "/tokenizer_config.json") << R"({"chat_template": "{{ bos_token }}!", "bos_token": null})";
  EXPECT_EQ(text_of(false), "!");
  std::ofstream(folder + "/tokenizer_config.json")
      << R"({"chat_template": [{"name": "default", "template": "two"}, {"name": "tool_use", "template": "tools"}]})";
  EXPECT_EQ(text_of(false), "two");
  EXPECT_EQ(text_of(true), "tools");
  std::ofstream(folder + "/chat_template.jinja") << "three";
  EXPECT_EQ(text_of(true), "three");
  std::filesystem::create_directories(folder + "/additional_chat_templates");
  std::ofstream(folder + "/additional_chat_templates/tool_use.jinja") << "four";
  EXPECT_EQ(text_of(true), "four");
  EXPECT_EQ(text_of(false), "three");
  std::ofstream(folder + "/chat_template.jinja") << "\n{% if %}";
  try {
    text_of(false);
    ADD_FAILURE();
  } catch (const UserError& error) {
    EXPECT_NE(std::string_view(error.what()).find("chat_template.jinja:2: "), std::string_view::npos) << error.what();
  }
}

}  // namespace
}  // namespace llmtrain
