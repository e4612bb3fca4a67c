#include "text/tokenizer_configs.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "core/json_reader.hpp"
#include "text/added_token_files.hpp"
#include "text/json_node.hpp"

namespace llmtrain {
namespace {

namespace names = tokenizer_names;

/// Calls see(root) for a file that is there.
template <class See>
void read_config(const TokenizerFileSet& set, std::string_view name, const See& see) {
  const TokenizerFile* file = set.find(name);
  if (file == nullptr) return;
  const nlohmann::json document = parse_json(file->bytes, set.path(*file));
  see(JsonNode(document, set.path(*file)));
}

std::optional<int32_t> id_by_text(const JsonNode& root, const std::string& key, const FindToken& find) {
  if (!root.has(key)) return {};
  const JsonNode node = root.at(key);
  const std::string& token = node.value().is_object() ? node.at("content").text() : node.text();
  const int32_t id = find(token);
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

}  // namespace

std::vector<AddedToken> tokens_beside(const TokenizerFileSet& set) {
  std::vector<AddedToken> tokens;
  read_config(set, names::config, [&](const JsonNode& root) { tokens = read_added_tokens_decoder(root); });
  if (!tokens.empty()) return tokens;
  read_config(set, names::added, [&](const JsonNode& root) { tokens = read_added_tokens_json(root); });
  return tokens;
}

Gpt2Options gpt2_options(const TokenizerFileSet& set) {
  Gpt2Options options;
  options.beside = tokens_beside(set);
  read_config(set, names::config, [&](const JsonNode& root) {
    options.add_prefix_space = root.boolean_or("add_prefix_space", false);
    const std::string kind = root.text_or("tokenizer_class", "GPT2Tokenizer");
    if (kind == "GPT2Tokenizer" || kind == "GPT2TokenizerFast") return;
    root.at("tokenizer_class")
        .refuse(fmt::format("{}: how it splits text is not in vocab.json and merges.txt, which are read as GPT-2's: "
                            "its tokenizer.json is needed",
                            printable(kind)));
  });
  for (const std::string_view name : names::with_texts) {
    read_config(set, name, [&](const JsonNode& root) {
      for (std::string& special : read_special_token_names(root)) options.special_names.push_back(std::move(special));
    });
  }
  return options;
}

int32_t first_token(const FindToken& find, std::initializer_list<std::string_view> texts) {
  for (const std::string_view text : texts) {
    if (const int32_t id = find(text); id >= 0) return id;
  }
  return -1;
}

TokenizerOrigin named_ids(const TokenizerFileSet& set, const FindToken& find, int64_t id_limit) {
  const auto id_of = [&](const std::string& name) {
    std::optional<int32_t> id;
    for (const std::string_view file : names::with_texts) {
      if (!id) read_config(set, file, [&](const JsonNode& root) { id = id_by_text(root, name + "_token", find); });
    }
    for (const std::string_view file : names::with_ids) {
      if (!id) {
        read_config(set, file, [&](const JsonNode& root) { id = id_by_number(root, name + "_token_id", id_limit); });
      }
    }
    return id.value_or(-1);
  };
  const int32_t eos = id_of("eos"), bos = id_of("bos"), pad = id_of("pad");
  return {eos, bos, pad, {}};
}

}  // namespace llmtrain
