#include "text/hf_folder/json_out.hpp"

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "text/pipeline/byte_level.hpp"

namespace llmtrain {
namespace {

using nlohmann::ordered_json;

ordered_json byte_level_json(bool adds_prefix_space, bool splits) {
  return {
      {"type", "ByteLevel"}, {"add_prefix_space", adds_prefix_space}, {"trim_offsets", true}, {"use_regex", splits}};
}

ordered_json special_token(int64_t id, const std::string& content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

/// Adds a key to an object without the search for an equal one, which would take long in a vocabulary.
void append(ordered_json& object, std::string key, int64_t id) {
  object.get_ref<ordered_json::object_t&>().emplace_back(std::move(key), id);
}

/// Returns the post_processor that puts a token before every text; null without a token.
ordered_json bos_processor(const std::string& bos, int64_t id) {
  if (bos.empty()) return nullptr;
  const ordered_json special = {{"SpecialToken", {{"id", bos}, {"type_id", 0}}}};
  const auto sequence = [](const char* name, int type) {
    return ordered_json{{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  return {{"type", "TemplateProcessing"},
          {"single", ordered_json::array({special, sequence("A", 0)})},
          {"pair", ordered_json::array({special, sequence("A", 0), sequence("B", 1)})},
          {"special_tokens", {{bos, {{"id", bos}, {"ids", {id}}, {"tokens", {bos}}}}}}};
}

/// The parts of a tokenizer.json of byte-pair encoding that differ.
struct Parts {
  ordered_json added_tokens = ordered_json::array(), pre_tokenizer, post_processor, decoder,
               vocabulary = ordered_json::object(), merges = ordered_json::array();
};

std::string tokenizer_json(Parts parts) {
  ordered_json json = {{"version", "1.0"},
                       {"truncation", nullptr},
                       {"padding", nullptr},
                       {"added_tokens", std::move(parts.added_tokens)},
                       {"normalizer", nullptr},
                       {"pre_tokenizer", std::move(parts.pre_tokenizer)},
                       {"post_processor", std::move(parts.post_processor)},
                       {"decoder", std::move(parts.decoder)},
                       {"model",
                        {{"type", "BPE"},
                         {"dropout", nullptr},
                         {"unk_token", nullptr},
                         {"continuing_subword_prefix", nullptr},
                         {"end_of_word_suffix", nullptr},
                         {"fuse_unk", false},
                         {"byte_fallback", false},
                         {"ignore_merges", false}}}};
  json["model"]["vocab"] = std::move(parts.vocabulary);
  json["model"]["merges"] = std::move(parts.merges);
  return json.dump(2);
}

/// GPT-2's pattern is built into the step that makes bytes printable; every other pattern precedes that step.
ordered_json pre_tokenizer(const SplitPattern& split) {
  if (split.name() == "gpt2") return byte_level_json(false, true);
  const ordered_json step = {
      {"type", "Split"}, {"pattern", {{"Regex", split.regex()}}}, {"behavior", "Isolated"}, {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", ordered_json::array({step, byte_level_json(false, false)})}};
}

std::string tokenizer_config(const std::string& eos, const std::string& bos) {
  ordered_json config = {{"add_prefix_space", false}};
  if (!bos.empty()) config["bos_token"] = bos;
  config["clean_up_tokenization_spaces"] = false;
  if (!eos.empty()) config["eos_token"] = eos;
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  return config.dump(2) + "\n";
}

}  // namespace

std::string bpe_tokenizer_json(const BpeVocabulary& vocabulary, const SplitPattern& split, const std::string& bos) {
  Parts parts;
  parts.pre_tokenizer = pre_tokenizer(split);
  parts.decoder = byte_level_json(true, true);
  for (const std::string& token : vocabulary.special_tokens) {
    parts.added_tokens.push_back(special_token(std::ssize(parts.added_tokens), token));
  }
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string_view token = vocabulary.tokens[id];
    append(parts.vocabulary, std::string(token), static_cast<int64_t>(id));
    if (token == bos) parts.post_processor = bos_processor(bos, static_cast<int64_t>(id));
  }
  for (const auto& [left, right] : vocabulary.merges) {
    const auto text = [&](int32_t id) { return std::string(vocabulary.tokens[static_cast<size_t>(id)]); };
    parts.merges.push_back(ordered_json::array({text(left), text(right)}));
  }
  return tokenizer_json(std::move(parts));
}

std::string bpe_tokenizer_config(const BpeSpecialTokens& tokens) { return tokenizer_config(tokens.eos, tokens.bos); }

std::vector<TokenizerFile> plain_tokenizer_files(const Tokenizer& tokenizer) {
  LLMTRAIN_CHECK(tokenizer.kind() == "char" || tokenizer.kind() == "bytes", "a tokenizer with files of its own");
  const bool bytes = tokenizer.kind() == "bytes";
  const std::string eos = "<|endoftext|>", bos = tokenizer.bos_id() >= 0 ? "<|startoftext|>" : "";
  Parts parts;
  parts.pre_tokenizer = bytes ? byte_level_json(false, false) : ordered_json();
  parts.post_processor = bos_processor(bos, tokenizer.bos_id());
  parts.decoder = bytes ? byte_level_json(false, false) : ordered_json{{"type", "Fuse"}};
  for (int32_t id = 0; id < tokenizer.vocabulary_size(); ++id) {
    const std::string text = tokenizer.decode(std::span(&id, 1));
    if (!text.empty()) append(parts.vocabulary, bytes ? to_byte_level(text) : text, id);
  }
  for (const auto& [name, id] : {std::pair{eos, tokenizer.eos_id()}, {bos, tokenizer.bos_id()}}) {
    if (name.empty()) continue;
    append(parts.vocabulary, name, id);
    parts.added_tokens.push_back(special_token(id, name));
  }
  return {{"tokenizer.json", tokenizer_json(std::move(parts)) + "\n"},
          {"tokenizer_config.json", tokenizer_config(eos, bos)}};
}

}  // namespace llmtrain
