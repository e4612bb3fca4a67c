#include "text/files/tokenizer_configs.hpp"

#include <fmt/format.h>

#include "core/files/json_reader.hpp"
#include "text/files/json_node.hpp"
#include "text/unicode/characters.hpp"

namespace llmtrain {
namespace {

namespace names = tokenizer_names;
using Json = nlohmann::json;

/// Calls see(root) for a file that exists.
template <class See>
void read_config(const TokenizerFileSet& set, std::string_view name, const See& see) {
  const TokenizerFile* file = set.find(name);
  if (file == nullptr) return;
  const Json document = parse_json(file->bytes, set.path(*file));
  see(JsonNode(document, set.path(*file)));
}

/// With `lenient` a token that the vocabulary lacks counts as not named.
std::optional<int32_t> id_by_text(const JsonNode& root, const std::string& key, const FindToken& find, bool lenient) {
  if (!root.has(key)) return {};
  const JsonNode node = root.at(key);
  const std::string& token = node.value().is_object() ? node.at("content").text() : node.text();
  const int32_t id = find(token);
  if (id < 0 && lenient) return {};
  if (id < 0) node.refuse(fmt::format("the token \"{}\" is not in the vocabulary", token.substr(0, 60)));
  return id;
}

std::optional<int32_t> id_by_number(const JsonNode& root, const std::string& key, int64_t id_limit) {
  if (!root.has(key)) return {};
  const JsonNode node = root.at(key);
  if (node.value().is_array() && node.size() == 0) return {};
  const JsonNode first = node.value().is_array() ? node.at(size_t{0}) : node;
  if (first.value().is_number_integer() && first.value().get<int64_t>() < 0) return {};
  return static_cast<int32_t>(first.integer(0, id_limit - 1));
}

bool is_step(const Json& step, std::string_view type) {
  return step.is_object() && step.contains("type") && step["type"] == type;
}

/// Calls see(step) for each step of the given type in a section; returns the number of such steps.
template <class See>
int for_steps(Json& section, std::string_view type, const See& see) {
  if (is_step(section, type)) {
    see(section);
    return 1;
  }
  int count = 0;
  if (!is_step(section, "Sequence")) return count;
  for (auto& [key, list] : section.items()) {
    if (!list.is_array()) continue;
    for (Json& step : list) count += for_steps(step, type, see);
  }
  return count;
}

/// Removes the steps of a section for which `is` holds.
template <class Is>
void erase_steps(Json& section, const Is& is) {
  if (is(section)) section = nullptr;
  if (!is_step(section, "Sequence")) return;
  for (auto& [key, list] : section.items()) {
    if (!list.is_array()) continue;
    for (Json& step : list) erase_steps(step, is);
    list.erase(std::remove_if(list.begin(), list.end(), [](const Json& step) { return step.is_null(); }), list.end());
  }
}

void set_metaspace(Json& root, bool prefix, bool every_segment) {
  const char* scheme = !prefix ? "never" : every_segment ? "always" : "first";
  const auto change = [&](Json& step) {
    step["prepend_scheme"] = scheme;
    step.erase("add_prefix_space");
  };
  const int splits = for_steps(root["pre_tokenizer"], "Metaspace", change);
  for_steps(root["decoder"], "Metaspace", change);
  const auto prepends = [](const Json& step) {
    return is_step(step, "Prepend") && step.contains("prepend") && step["prepend"] == space_symbol;
  };
  if (!prefix) {
    erase_steps(root["normalizer"], prepends);
    erase_steps(root["decoder"], [](const Json& step) { return is_step(step, "Strip"); });
    return;
  }
  int prefixes = splits;
  for_steps(root["normalizer"], "Prepend", [&](const Json& step) { prefixes += prepends(step) ? 1 : 0; });
  if (prefixes > 0 || !root["pre_tokenizer"].is_null()) return;
  root["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", space_symbol}, {"prepend_scheme", scheme}, {"split", false}};
}

bool is_byte_level(const TokenizerFileSet& set) {
  const TokenizerFile* json = set.find(names::json);
  return json != nullptr && json->bytes.find("\"ByteLevel\"") != std::string::npos;
}

}  // namespace

TokenizerFolder::TokenizerFolder(const TokenizerFileSet& set) : set_(set), class_(&find_tokenizer_class("")) {
  read_config(set, names::config, [&](const JsonNode& root) {
    class_ = &find_tokenizer_class(root.text_or("tokenizer_class", ""));
    if (root.has("add_prefix_space")) add_prefix_space_ = root.at("add_prefix_space").boolean();
    if (root.has("legacy")) legacy_ = root.at("legacy").boolean();
  });
  // Like Transformers: such a folder is not of the kind that its class names.
  const bool mistaken = class_->prefix == TokenizerClass::Prefix::metaspace && is_byte_level(set);
  if (mistaken) class_ = &find_tokenizer_class("");
}

void TokenizerFolder::change_prefix_space(Json& tokenizer_json) const {
  if (!tokenizer_json.is_object()) return;
  switch (class_->prefix) {
    case TokenizerClass::Prefix::none:
      return;
    case TokenizerClass::Prefix::byte_level:
      for_steps(tokenizer_json["pre_tokenizer"], "ByteLevel",
                [&](Json& step) { step["add_prefix_space"] = add_prefix_space_.value_or(false); });
      return;
    case TokenizerClass::Prefix::metaspace:
      if (add_prefix_space_) set_metaspace(tokenizer_json, *add_prefix_space_, legacy_.value_or(false));
      return;
  }
}

bool TokenizerFolder::gpt2_prefix_space() const {
  read_config(set_, names::config, [&](const JsonNode& root) {
    const std::string kind = root.text_or("tokenizer_class", "GPT2Tokenizer");
    if (kind == "GPT2Tokenizer" || kind == "GPT2TokenizerFast") return;
    root.at("tokenizer_class")
        .refuse(fmt::format("{}: vocab.json and merges.txt do not record how it splits text and are read as GPT-2's; "
                            "its tokenizer.json is needed",
                            printable(kind)));
  });
  return add_prefix_space_.value_or(false);
}

bool TokenizerFolder::prefixes_every_segment() const {
  return legacy_.value_or(class_->prefix != TokenizerClass::Prefix::metaspace);
}

std::vector<AddedToken> TokenizerFolder::add_tokens(std::vector<AddedToken> added, const FindToken& in_vocabulary,
                                                    int64_t size) {
  takes_tokens_ = true;
  tokens_ = read_folder_tokens(set_, *class_, added);
  add_folder_tokens(tokens_, in_vocabulary, size, added, warnings_);
  return added;
}

int32_t first_token(const FindToken& find, std::initializer_list<std::string_view> texts) {
  for (const std::string_view text : texts) {
    if (const int32_t id = find(text); id >= 0) return id;
  }
  return -1;
}

TokenizerOrigin TokenizerFolder::named_ids(const FindToken& find, int64_t id_limit) const {
  const auto id_of = [&](const std::string& name) {
    const FolderTokens::Named* named = tokens_.find(name + "_token");
    if (named != nullptr && !named->by_class) return find(named->token.content);
    std::optional<int32_t> id;
    for (const std::string_view file : names::with_texts) {
      const auto see = [&](const JsonNode& root) { id = id_by_text(root, name + "_token", find, takes_tokens_); };
      if (!id) read_config(set_, file, see);
    }
    for (const std::string_view file : names::with_ids) {
      if (!id) {
        read_config(set_, file, [&](const JsonNode& root) { id = id_by_number(root, name + "_token_id", id_limit); });
      }
    }
    return id.value_or(named != nullptr ? find(named->token.content) : -1);
  };
  const int32_t eos = id_of("eos"), bos = id_of("bos"), pad = id_of("pad");
  return {eos, bos, pad, {}, warnings_};
}

}  // namespace llmtrain
