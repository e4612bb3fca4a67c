#include "text/hf_folder/json_out.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "text/pipeline/byte_level.hpp"

namespace llmtrain {
namespace {

std::string json_text(std::string_view text) { return nlohmann::json(text).dump(); }

std::string added_tokens(const BpeVocabulary& vocabulary) {
  if (vocabulary.special_tokens.empty()) return "[]";
  std::string text = "[";
  for (size_t id = 0; id < vocabulary.special_tokens.size(); ++id) {
    text += fmt::format(R"({}
    {{
      "id": {},
      "content": {},
      "single_word": false,
      "lstrip": false,
      "rstrip": false,
      "normalized": false,
      "special": true
    }})",
                        id == 0 ? "" : ",", id, json_text(vocabulary.special_tokens[id]));
  }
  return text + "\n  ]";
}

constexpr std::string_view gpt2_pre_tokenizer = R"({
    "type": "ByteLevel",
    "add_prefix_space": false,
    "trim_offsets": true,
    "use_regex": true
  })";

/// GPT-2's pattern is built into the step that makes bytes printable; every other pattern precedes that step.
std::string pre_tokenizer(const SplitPattern& split) {
  if (split.name() == "gpt2") return std::string(gpt2_pre_tokenizer);
  return fmt::format(R"({{
    "type": "Sequence",
    "pretokenizers": [
      {{
        "type": "Split",
        "pattern": {{
          "Regex": {}
        }},
        "behavior": "Isolated",
        "invert": false
      }},
      {{
        "type": "ByteLevel",
        "add_prefix_space": false,
        "trim_offsets": true,
        "use_regex": false
      }}
    ]
  }})",
                     json_text(split.regex()));
}

void append_vocabulary(const BpeVocabulary& vocabulary, std::string& text) {
  text += "{";
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    text += id == 0 ? "\n      " : ",\n      ";
    text += json_text(vocabulary.tokens[id]);
    text += ": " + std::to_string(id);
  }
  text += "\n    }";
}

void append_merges(const BpeVocabulary& vocabulary, std::string& text) {
  text += "[";
  bool first = true;
  for (const auto& [left, right] : vocabulary.merges) {
    text += first ? "\n      [\n        " : ",\n      [\n        ";
    first = false;
    text += json_text(vocabulary.tokens[static_cast<size_t>(left)]);
    text += ",\n        ";
    text += json_text(vocabulary.tokens[static_cast<size_t>(right)]);
    text += "\n      ]";
  }
  text += first ? "]" : "\n    ]";
}

/// Estimates the size of the vocabulary and the merges; without it a growing text would be held twice.
size_t json_bytes(const BpeVocabulary& vocabulary) {
  size_t bytes = 0;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) bytes += vocabulary.tokens[id].size() + 20;
  for (const auto& [left, right] : vocabulary.merges) {
    bytes +=
        vocabulary.tokens[static_cast<size_t>(left)].size() + vocabulary.tokens[static_cast<size_t>(right)].size() + 48;
  }
  return bytes;
}

}  // namespace

nlohmann::json bos_post_processor(const std::string& bos, int32_t id) {
  using Json = nlohmann::json;
  const auto special = [&] { return Json{{"SpecialToken", {{"id", bos}, {"type_id", 0}}}}; };
  const auto sequence = [](const char* name, int type) {
    return Json{{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  Json processor = Json::object();
  processor["type"] = "TemplateProcessing";
  processor["single"] = Json::array({special(), sequence("A", 0)});
  processor["pair"] = Json::array({special(), sequence("A", 0), sequence("B", 1)});
  processor["special_tokens"][bos] = {{"id", bos}, {"ids", {id}}, {"tokens", {bos}}};
  return processor;
}

std::string bpe_tokenizer_json(const BpeVocabulary& vocabulary, const SplitPattern& split, const std::string& bos) {
  size_t bos_id = 0;
  while (!bos.empty() && bos_id < vocabulary.tokens.size() && vocabulary.tokens[bos_id] != bos) ++bos_id;
  std::string text = fmt::format(R"({{
  "version": "1.0",
  "truncation": null,
  "padding": null,
  "added_tokens": {},
  "normalizer": null,
  "pre_tokenizer": {},
  "post_processor": {},
  "decoder": {{
    "type": "ByteLevel",
    "add_prefix_space": true,
    "trim_offsets": true,
    "use_regex": true
  }},
  "model": {{
    "type": "BPE",
    "dropout": null,
    "unk_token": null,
    "continuing_subword_prefix": null,
    "end_of_word_suffix": null,
    "fuse_unk": false,
    "byte_fallback": false,
    "ignore_merges": false,
    "vocab": )",
                                 added_tokens(vocabulary), pre_tokenizer(split),
                                 bos.empty() ? "null" : bos_post_processor(bos, static_cast<int32_t>(bos_id)).dump());
  text.reserve(text.size() + json_bytes(vocabulary));
  append_vocabulary(vocabulary, text);
  text += ",\n    \"merges\": ";
  append_merges(vocabulary, text);
  text += "\n  }\n}";
  return text;
}

std::string bpe_tokenizer_config(const BpeSpecialTokens& tokens) {
  nlohmann::ordered_json config = nlohmann::ordered_json::object();
  config["add_prefix_space"] = false;
  if (!tokens.bos.empty()) config["bos_token"] = tokens.bos;
  config["clean_up_tokenization_spaces"] = false;
  if (!tokens.eos.empty()) config["eos_token"] = tokens.eos;
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  return config.dump(2) + "\n";
}

namespace {

using Json = nlohmann::json;

constexpr const char* eos_name = "<|endoftext|>";
constexpr const char* bos_name = "<|startoftext|>";

/// Returns the ids of special tokens by name.
Json special_tokens(const Tokenizer& tokenizer) {
  Json names = Json::object();
  names[eos_name] = tokenizer.eos_id();
  if (tokenizer.bos_id() >= 0) names[bos_name] = tokenizer.bos_id();
  return names;
}

Json byte_level_json() {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
}

Json tokenizer_json(const Tokenizer& tokenizer) {
  const bool bytes = tokenizer.kind() == "bytes";
  const Json special = special_tokens(tokenizer);
  Json vocabulary, added = Json::array();
  for (int32_t id = 0; id < tokenizer.vocabulary_size(); ++id) {
    const std::string text = tokenizer.decode(std::span(&id, 1));
    if (!text.empty()) vocabulary[bytes ? to_byte_level(text) : text] = id;
  }
  for (const auto& [name, id] : special.items()) {
    vocabulary[name] = id;
    added.push_back({{"id", id},
                     {"content", name},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  Json json = Json::object();
  json["version"] = "1.0";
  json["truncation"] = json["padding"] = nullptr;
  json["added_tokens"] = added;
  json["normalizer"] = nullptr;
  json["pre_tokenizer"] = bytes ? byte_level_json() : Json();
  json["post_processor"] = tokenizer.bos_id() >= 0 ? bos_post_processor(bos_name, tokenizer.bos_id()) : Json();
  json["decoder"] = bytes ? byte_level_json() : Json{{"type", "Fuse"}};
  json["model"] = {{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", nullptr},
                   {"continuing_subword_prefix", nullptr},
                   {"end_of_word_suffix", nullptr},
                   {"fuse_unk", false},
                   {"byte_fallback", false},
                   {"ignore_merges", false},
                   {"vocab", vocabulary},
                   {"merges", Json::array()}};
  return json;
}

Json tokenizer_config(const Tokenizer& tokenizer) {
  Json config = Json::object();
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  config["eos_token"] = eos_name;
  if (tokenizer.bos_id() >= 0) config["bos_token"] = bos_name;
  config["clean_up_tokenization_spaces"] = false;
  return config;
}

}  // namespace

std::vector<TokenizerFile> plain_tokenizer_files(const Tokenizer& tokenizer) {
  LLMTRAIN_CHECK(tokenizer.kind() == "char" || tokenizer.kind() == "bytes", "a tokenizer with files of its own");
  return {{"tokenizer.json", tokenizer_json(tokenizer).dump(2) + "\n"},
          {"tokenizer_config.json", tokenizer_config(tokenizer).dump(2) + "\n"}};
}

}  // namespace llmtrain
