#include "text/added_token_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace llmtrain {
namespace {

constexpr size_t most_tokens_beside = size_t{1} << 16;
constexpr size_t longest_token_beside = size_t{1} << 10;  ///< bytes

void check_content(const std::string& content, const JsonNode& node) {
  if (content.empty()) node.refuse("an empty token");
  if (content.size() > longest_token_beside)
    node.refuse(fmt::format("a token of more than {} bytes", longest_token_beside));
}

int32_t parse_id(const std::string& key, const JsonNode& node) {
  int32_t id = -1;
  const auto [stop, error] = std::from_chars(key.data(), key.data() + key.size(), id);
  if (error != std::errc() || stop != key.data() + key.size() || id < 0) node.refuse("the key is no id of a token");
  return id;
}

void sort_by_id(std::vector<AddedToken>& tokens) { std::ranges::stable_sort(tokens, {}, &AddedToken::id); }

}  // namespace

std::vector<AddedToken> read_added_tokens_decoder(const JsonNode& tokenizer_config) {
  std::vector<AddedToken> tokens;
  if (!tokenizer_config.has("added_tokens_decoder")) return tokens;
  const JsonNode list = tokenizer_config.at("added_tokens_decoder").object();
  if (list.size() > most_tokens_beside) list.refuse(fmt::format("more than {} tokens", most_tokens_beside));
  for (const auto& [key, value] : list.value().items()) {
    const JsonNode node = list.at(key);
    node.allow({"content", "single_word", "lstrip", "rstrip", "normalized", "special", "__type"});
    AddedToken token{.content = node.at("content").text(), .id = parse_id(key, node)};
    check_content(token.content, node);
    token.single_word = node.boolean_or("single_word", false);
    token.lstrip = node.boolean_or("lstrip", false);
    token.rstrip = node.boolean_or("rstrip", false);
    token.special = node.boolean_or("special", false);
    token.normalized = node.boolean_or("normalized", !token.special);
    tokens.push_back(std::move(token));
  }
  sort_by_id(tokens);
  return tokens;
}

std::vector<AddedToken> read_added_tokens_json(const JsonNode& root) {
  std::vector<AddedToken> tokens;
  if (root.object().size() > most_tokens_beside) root.refuse(fmt::format("more than {} tokens", most_tokens_beside));
  for (const auto& [content, value] : root.value().items()) {
    const JsonNode node = root.at(content);
    check_content(content, node);
    tokens.push_back(
        {.content = content, .id = static_cast<int32_t>(node.integer(0, INT32_MAX - 1)), .normalized = true});
  }
  sort_by_id(tokens);
  return tokens;
}

std::vector<std::string> read_special_token_names(const JsonNode& config) {
  std::vector<std::string> names;
  const auto add = [&](const JsonNode& node) {
    names.push_back(node.value().is_object() ? node.at("content").text() : node.text());
  };
  for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    if (config.has(key)) add(config.at(key));
  }
  if (config.has("additional_special_tokens")) {
    const JsonNode list = config.at("additional_special_tokens");
    for (size_t i = 0; i < list.array().size(); ++i) add(list.at(i));
  }
  return names;
}

std::vector<AddedToken> join_added_tokens(std::vector<AddedToken> beside, const std::vector<std::string>& named,
                                          const Vocabulary& vocabulary, const std::string& place) {
  const auto refuse = [&](const AddedToken& token, const std::string& what) {
    throw UserError(ExitCode::bad_content,
                    fmt::format("{}: the added token \"{}\" {}", place, token.content.substr(0, 60), what));
  };
  for (const std::string& name : named) {
    const auto found = std::ranges::find(beside, name, &AddedToken::content);
    const int32_t id = vocabulary.find(name);
    if (found != beside.end()) {
      found->special = true;
      found->normalized = false;
    } else if (id >= 0) {
      beside.push_back({.content = name, .id = id, .special = true});
    }
  }
  for (const AddedToken& token : beside) {
    const int32_t id = vocabulary.find(token.content);
    if (id >= 0 && id != token.id) refuse(token, fmt::format("has the id {}, in the vocabulary {}", token.id, id));
    if (id < 0 && vocabulary.has(token.id)) refuse(token, fmt::format("has the id {} of another token", token.id));
  }
  return beside;
}

}  // namespace llmtrain
