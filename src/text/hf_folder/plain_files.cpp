#include "text/hf_folder/plain_files.hpp"

#include <nlohmann/json.hpp>

#include "text/hf_folder/json_out.hpp"
#include "text/pipeline/byte_level.hpp"

namespace llmtrain {
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
