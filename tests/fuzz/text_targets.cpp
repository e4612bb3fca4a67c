// Tokenizers and JSON.

#include <cstdlib>

#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "core/utf8.hpp"
#include "fuzz/targets.hpp"
#include "text/chat/chat_template.hpp"
#include "text/hf_folder/json_in.hpp"
#include "text/hf_folder/vocabulary_files.hpp"
#include "text/pipeline/pipeline_tokenizer.hpp"
#include "text/sentencepiece/sentencepiece_model.hpp"
#include "text/text_stream.hpp"

namespace llmtrain::fuzz {
namespace {

constexpr std::string_view text =
    "The cat's 1234 mats,  \xE4\xB8\xAD\xE6\x96\x87 \xC3\xA9\x65\xCC\x81\r\n\n\t<s>\xF0\x9F\x98\x80 \xFF\xC3 aaaaaaaa ";

/// Ids lie in the vocabulary, ranges in the text, and the texts of single tokens concatenate to the whole.
void use(const Tokenizer& tokenizer) {
  const auto expect = [](bool condition) {
    if (!condition) std::abort();
  };
  std::vector<int32_t> ids;
  std::vector<TextRange> ranges;
  tokenizer.encode(text, ids);
  for (const int32_t id : ids) expect(id >= 0 && id < tokenizer.vocabulary_size());
  std::vector<int32_t> again;
  tokenizer.encode_with_ranges(text, again, ranges);
  expect(again == ids && ranges.size() == ids.size());
  for (const TextRange& range : ranges) expect(range.begin <= range.end && range.end <= text.size());
  tokenizer.add_special_tokens(ids, nullptr);
  TextStream stream(tokenizer, {});
  for (const int32_t id : ids) stream.add(id);
  expect(stream.text() == tokenizer.decode(ids));
}

}  // namespace

void run_json(std::string_view bytes) try { parse_json(bytes, "input"); } catch (const UserError&) {
}

/// The ranges of the text are in order and inside it, and the text is UTF-8.
void run_chat_template(std::string_view bytes) try {
  static const nlohmann::ordered_json row = nlohmann::ordered_json::parse(R"({
    "messages": [{"role": "system", "content": " S <x> \u00e9"},
                 {"role": "user", "content": "a<b>", "n": 3, "x": 1.5, "l": [3, 1, 2], "d": {"b": 1, "A": [true, null]}},
                 {"role": "assistant", "content": "<think>why</think>\n\nYes",
                  "tool_calls": [{"function": {"name": "f", "arguments": {"k": [1, 2.5]}}}]}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "variables": {"bos_token": "<s>", "flag": true, "word": "Hello, W\u00f6rld", "words": ["pear", "Apple", "fig"],
                  "people": [{"name": "Bo", "age": 3, "home": {"city": "x"}}, {"name": "Cy", "age": 1}],
                  "numbers": {"one": 1, "big": 9007199254740993, "f": 1e16, "g": 1e-05}}})");
  static const ChatVariables variables = [] {
    ChatVariables all;
    for (const auto& [name, value] : row["variables"].items()) all.emplace_back(name, value);
    return all;
  }();
  Conversation conversation;
  conversation.messages = row["messages"];
  conversation.tools = row["tools"];
  const RenderedChat chat = ChatTemplate(bytes, "input").render(conversation, variables, {true, 0});
  const auto expect = [](bool condition) {
    if (!condition) std::abort();
  };
  expect(find_invalid_utf8(chat.text) == std::string_view::npos);
  for (const auto* ranges : {&chat.content, &chat.generated}) {
    size_t done = 0;
    for (const TextRange& range : *ranges) {
      expect(done <= range.begin && range.begin < range.end && range.end <= chat.text.size());
      done = range.end;
    }
  }
} catch (const UserError&) {
}

void run_tokenizer_json(std::string_view bytes) try {
  use(*make_pipeline_tokenizer(read_tokenizer_json(bytes, "input"), {}));
} catch (const UserError&) {
}

void run_sentencepiece(std::string_view bytes) try {
  use(*make_sentencepiece_tokenizer(read_sentencepiece_model(bytes, "input"), {}));
} catch (const UserError&) {
}

void run_tiktoken(std::string_view bytes) try {
  use(*make_pipeline_tokenizer(read_tiktoken_file(bytes, "input"), {}));
} catch (const UserError&) {
}

}  // namespace llmtrain::fuzz
