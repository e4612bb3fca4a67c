#include "text/hf_folder/added_tokens.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "core/files/json_node.hpp"
#include "core/files/json_reader.hpp"
#include "core/find_entry.hpp"
#include "text/unicode/characters.hpp"

namespace llmtrain {
namespace {

namespace names = tokenizer_names;

constexpr size_t max_other_tokens = size_t{1} << 16;

void check_size(const JsonNode& list) {
  if (list.size() > max_other_tokens) list.refuse(fmt::format("more than {} tokens", max_other_tokens));
}

const std::string& checked(const std::string& content, const JsonNode& node) {
  if (content.empty()) node.refuse("a token must not be empty");
  if (content.size() > max_added_token_bytes)
    node.refuse(fmt::format("a token of more than {} bytes", max_added_token_bytes));
  return content;
}

int32_t parse_id(const std::string& key, const JsonNode& node) {
  int32_t id = -1;
  const auto [stop, error] = std::from_chars(key.data(), key.data() + key.size(), id);
  if (error != std::errc() || stop != key.data() + key.size() || id < 0)
    node.refuse("the key must be the id of a token");
  return id;
}

/// A text, which makes a special token, or an object with flags.
AddedToken read_token(const JsonNode& node) {
  AddedToken token;
  token.special = true;
  if (!node.value().is_object()) {
    token.content = checked(node.text(), node);
    return token;
  }
  node.allow({"content", "single_word", "lstrip", "rstrip", "normalized", "special", "__type", "id"});
  token.content = checked(node.at("content").text(), node);
  token.single_word = node.boolean_or("single_word", false);
  token.lstrip = node.boolean_or("lstrip", false);
  token.rstrip = node.boolean_or("rstrip", false);
  token.special = node.boolean_or("special", false);
  token.normalized = node.boolean_or("normalized", !token.special);
  return token;
}

/// A file of the folder and the order of its keys, which determines the order of new tokens.
struct ConfigFile {
  nlohmann::json document = nlohmann::json::object();
  nlohmann::ordered_json ordered = nlohmann::ordered_json::object();
  std::string name;

  ConfigFile(const TokenizerFileSet& set, std::string_view file_name) : name(set.folder + std::string(file_name)) {
    const TokenizerFile* file = set.find(file_name);
    if (file == nullptr) return;
    document = parse_json(file->bytes, name);
    ordered = nlohmann::ordered_json::parse(file->bytes);
    root().object();
  }
  JsonNode root() const { return {document, name}; }
  bool is_there(std::string_view key) const { return document.contains(key); }
  static std::vector<std::string> keys(const nlohmann::ordered_json& object) {
    std::vector<std::string> all;
    for (const auto& [key, value] : object.items()) all.push_back(key);
    return all;
  }
};

AddedToken plain(std::string content) { return {.content = std::move(content), .special = true}; }

bool is_token_name(std::string_view key) { return key.ends_with("_token") && !key.starts_with("add_"); }

class FolderReader {
 public:
  FolderReader(const TokenizerFileSet& set, const TokenizerClass& kind)
      : kind_(kind), config_(set, names::config), map_(set, "special_tokens_map.json"), added_(set, names::added) {
    for (const std::string_view key : token_keys) {
      const std::string_view content = kind.token(key);
      out_.named.push_back({std::string(key), plain(std::string(content)), true});
    }
    for (const auto& [key, content] : kind.more_tokens) {
      if (!key.empty()) out_.named.push_back({std::string(key), plain(std::string(content)), true});
    }
    out_.added_again = kind.named;
  }

  FolderTokens read(const std::vector<AddedToken>& in_main) {
    take_named(config_);
    read_extra_of_config();
    if (config_.root().has("added_tokens_decoder")) {
      read_decoder(config_.root().at("added_tokens_decoder").object());
    } else {
      take_named(map_);
      read_extra_of_map();
      read_added();
      for (const AddedToken& token : in_main) out_.by_id[token.id] = token;
    }
    if (out_.extra.empty()) {
      out_.extra = late_extra_;
      for (const auto& [key, content] : kind_.more_tokens) {
        if (!key.empty()) out_.extra.push_back({"", plain(std::string(content)), true});
      }
    }
    std::erase_if(out_.named, [](const FolderTokens::Named& named) { return named.token.content.empty(); });
    resolve_named();
    return std::move(out_);
  }

 private:
  /// A null removes a name.
  void name(const std::string& key, const nlohmann::json& value, const JsonNode& node, bool special) {
    FolderTokens::Named named{key, {}};
    if (!value.is_null() && value != "") {
      named.token = read_token(node);
      named.token.special = named.token.special || special;
      named.token.normalized = node.value().is_object() && node.boolean_or("normalized", false);
      named.is_text = value.is_string();
    }
    const auto found = std::ranges::find(out_.named, key, &FolderTokens::Named::key);
    if (found != out_.named.end()) {
      *found = std::move(named);
    } else {
      out_.named.push_back(std::move(named));
    }
  }
  void take_named(const ConfigFile& file) {
    for (const std::string& key : ConfigFile::keys(file.ordered)) {
      const nlohmann::json& value = file.document[key];
      const bool usual = std::ranges::find(token_keys, key) != token_keys.end();
      if (usual || (is_token_name(key) && (value.is_string() || (value.is_object() && value.contains("content"))))) {
        name(key, value, JsonNode(value, file.name + "." + key), &file == &map_);
      }
    }
  }
  static void take_list(const JsonNode& list, bool special, std::vector<FolderTokens::Named>& tokens) {
    check_size(list.array());
    for (size_t i = 0; i < list.size(); ++i) {
      FolderTokens::Named token{"", read_token(list.at(i)), false, list.at(i).value().is_string()};
      token.token.special = token.token.special || special;
      tokens.push_back(std::move(token));
    }
  }
  /// Reads a list, or names of tokens.
  void take_extra(const ConfigFile& file) {
    const JsonNode extra = file.root().at("extra_special_tokens");
    if (extra.value().is_array()) {
      take_list(extra, &file == &map_, out_.extra);
      return;
    }
    take_names(file, "extra_special_tokens");
  }
  void take_names(const ConfigFile& file, const std::string& list) {
    const JsonNode names = file.root().at(list);
    check_size(names.object());
    for (const std::string& key : ConfigFile::keys(file.ordered[list]))
      name(key, names.value()[key], names.at(key), false);
  }
  void read_extra_of_config() {
    const JsonNode root = config_.root();
    const bool has_extra = root.has("extra_special_tokens") && !root.at("extra_special_tokens").value().empty();
    if (root.has("model_specific_special_tokens")) take_names(config_, "model_specific_special_tokens");
    if (has_extra) take_extra(config_);
    const bool has_list = has_extra && root.at("extra_special_tokens").value().is_array();
    if (!has_list && root.has("additional_special_tokens")) {
      take_list(root.at("additional_special_tokens"), false, out_.extra);
    }
  }
  /// Reads additional_special_tokens, which count here only if nothing else names such tokens.
  void read_extra_of_map() {
    if (map_.root().has("extra_special_tokens")) take_extra(map_);
    if (map_.root().has("additional_special_tokens")) {
      take_list(map_.root().at("additional_special_tokens"), false, late_extra_);
    }
  }

  /// Reads added_tokens_decoder of tokenizer_config.json: {"50257": {"content": "<pad>", "special": true, ...}, ...}
  void read_decoder(const JsonNode& list) {
    check_size(list);
    out_.place = config_.name + ".added_tokens_decoder";
    for (const auto& [key, value] : list.value().items()) {
      const JsonNode node = list.at(key);
      node.object();
      out_.by_id[parse_id(key, node)] = read_token(node);
    }
  }
  /// Reads added_tokens.json: {"<pad>": 50257, ...}
  void read_added() {
    check_size(added_.root());
    out_.place = added_.name;
    std::unordered_set<std::string> special;
    for (const auto& named : out_.named) special.insert(named.token.content);
    for (const auto& extra : out_.extra) special.insert(extra.token.content);
    for (const auto& [content, value] : added_.document.items()) {
      const JsonNode node = added_.root().at(content);
      const bool is_special = special.contains(checked(content, node));
      const AddedToken token{.content = content, .normalized = !is_special, .special = is_special};
      const auto id = static_cast<int32_t>(node.integer_between(0, INT32_MAX - 1));
      if (!out_.by_id.emplace(id, token).second) node.refuse(fmt::format("two tokens have the id {}", id));
    }
  }

  /// A named token takes its flags from the added tokens; all named tokens are special.
  void resolve_named() {
    std::unordered_map<std::string, AddedToken*> by_content;
    for (auto& [id, token] : out_.by_id) {
      token.id = id;
      by_content[token.content] = &token;
    }
    for (const auto& named : out_.named) {
      const auto found = by_content.find(named.token.content);
      if (found != by_content.end()) found->second->special = true;
    }
  }

  const TokenizerClass& kind_;
  ConfigFile config_, map_, added_;
  FolderTokens out_;
  std::vector<FolderTokens::Named> late_extra_;
};

}  // namespace

bool FolderTokens::Named::operator==(const Named& other) const {
  const auto flags = [](const AddedToken& t) {
    return std::tuple(t.single_word, t.lstrip, t.rstrip, t.normalized, t.special);
  };
  return is_text == other.is_text && token.content == other.token.content && flags(token) == flags(other.token);
}

const FolderTokens::Named* FolderTokens::find(std::string_view key) const {
  return find_entry(named, key, &Named::key);
}

FolderTokens read_folder_tokens(const TokenizerFileSet& set, const TokenizerClass& kind,
                                const std::vector<AddedToken>& in_main) {
  return FolderReader(set, kind).read(in_main);
}

void add_folder_tokens(const FolderTokens& tokens, const FindToken& in_vocabulary, int64_t size,
                       std::vector<AddedToken>& added, std::vector<std::string>& warnings) {
  std::unordered_map<std::string, size_t> places;
  int64_t next = size;
  for (size_t i = 0; i < added.size(); ++i) {
    places[added[i].content] = i;
    next = std::max(next, int64_t{added[i].id} + 1);
  }
  const auto add = [&](AddedToken token) {
    const auto [place, is_new] = places.try_emplace(token.content, added.size());
    if (!is_new) {
      const AddedToken& before = added[place->second];
      token.id = before.id;
      token.special = token.special || before.special;  // nothing removes it again
      added[place->second] = std::move(token);
      return;
    }
    const int32_t said = token.id;
    token.id = in_vocabulary(token.content);
    if (token.id < 0) token.id = static_cast<int32_t>(next);
    next = std::max(next, int64_t{token.id} + 1);
    if (said >= 0 && said != token.id) {
      warnings.push_back(
          fmt::format("{}: the token \"{}\" has the id {} in the file, but gets {} here, as in Transformers, where "
                      "new tokens follow the vocabulary without a gap",
                      tokens.place, token.content.substr(0, 60), said, token.id));
    }
    added.push_back(std::move(token));
  };
  for (const auto& [id, token] : tokens.by_id) add(token);
  // A token that has two names or more is added once for each way in which they are written; the last counts.
  std::unordered_set<std::string_view> has_name, has_id;
  for (const auto& named : tokens.named) has_name.insert(named.token.content);
  for (const auto& [id, token] : tokens.by_id) has_id.insert(token.content);
  std::unordered_map<std::string_view, std::vector<const FolderTokens::Named*>> fresh;
  const auto for_all = [&](const auto& use) {
    std::ranges::for_each(tokens.named, use);
    std::ranges::for_each(tokens.extra, use);
  };
  for_all([&](const FolderTokens::Named& named) {
    const auto ways = fresh.find(named.token.content);
    const bool is_fresh = ways != fresh.end();
    if (!is_fresh && places.contains(named.token.content)) return;
    if (is_fresh && std::ranges::any_of(ways->second, [&](const auto* one) { return *one == named; })) return;
    fresh[named.token.content].push_back(&named);
    AddedToken token = named.token;
    token.special = token.special || has_name.contains(token.content);
    add(std::move(token));
  });
  if (tokens.added_again == TokenizerClass::Named::once) return;
  const bool all_plain = tokens.added_again == TokenizerClass::Named::again_plain;
  for_all([&](const FolderTokens::Named& named) {
    const bool as_with_id = !named.key.empty() && !named.by_class && has_id.contains(named.token.content);
    if (!all_plain && as_with_id) return;
    AddedToken token = all_plain || named.is_text ? plain(named.token.content) : named.token;
    token.special = true;
    add(std::move(token));
  });
}

namespace {

namespace names = tokenizer_names;
using nlohmann::ordered_json;

constexpr std::string_view list_key = "\"added_tokens\"";

ordered_json flags_of(const AddedToken& token) {
  return {{"content", token.content}, {"single_word", token.single_word}, {"lstrip", token.lstrip},
          {"rstrip", token.rstrip},   {"normalized", token.normalized},   {"special", token.special}};
}

/// Returns the end of the string that begins with a quote at `at`.
size_t skip_string(std::string_view json, size_t at) {
  for (++at; json.at(at) != '"'; ++at) at += json[at] == '\\' ? 1 : 0;
  return at + 1;
}

/// Returns the end of the value that begins at `at`.
size_t skip_value(std::string_view json, size_t at) {
  for (int depth = 0;;) {
    const char c = json.at(at);
    if (c == '"') {
      at = skip_string(json, at);
    } else {
      depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
      ++at;
    }
    if (depth == 0 && (c == '"' || c == '}' || c == ']')) return at;
    if (depth == 0 && at < json.size() && std::string_view(",}] \t\r\n").find(json[at]) != std::string_view::npos) {
      return at;
    }
  }
}

/// Returns the bytes of the value of "added_tokens" in the outermost object; of several the last one counts.
TextRange find_list(std::string_view json) {
  TextRange found;
  const auto next = [&](size_t at) { return json.find_first_not_of(" \t\r\n", at); };
  size_t at = next(json.find('{') + 1);
  while (json.at(at) == '"') {
    const size_t end_of_key = skip_string(json, at);
    const bool is_list = json.substr(at, end_of_key - at) == list_key;
    const size_t begin = next(json.find(':', end_of_key) + 1);
    const size_t end = skip_value(json, begin);
    if (is_list) found = {begin, end};
    at = next(end);
    if (json.at(at) == ',') at = next(at + 1);
  }
  return found;
}

}  // namespace

std::string replace_added_tokens(std::string_view tokenizer_json, const std::vector<AddedToken>& tokens) {
  ordered_json list = ordered_json::array();
  for (const AddedToken& token : tokens) {
    ordered_json entry = {{"id", token.id}};
    entry.update(flags_of(token));
    list.push_back(std::move(entry));
  }
  const size_t first = tokenizer_json.find('{') + 1;
  const bool pretty = tokenizer_json.find_first_of("\n\"", first) != std::string_view::npos &&
                      tokenizer_json[tokenizer_json.find_first_of("\n\"", first)] == '\n';
  std::string text = list.dump(pretty ? 2 : -1);
  for (size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 3) text.insert(at + 1, "  ");
  std::string changed(tokenizer_json);
  const TextRange old = find_list(tokenizer_json);
  if (old.end > 0) return changed.replace(old.begin, old.end - old.begin, text);
  return changed.insert(first, std::string(list_key) + ":" + text + ",");
}

void write_added_tokens(TokenizerFileSet& set, const std::vector<AddedToken>& tokens, const std::string& pad_token) {
  const bool has_json = format_of(set) == TokenizerFormat::json;
  if (has_json) set.files.front().bytes = replace_added_tokens(set.files.front().bytes, tokens);
  const auto found = std::ranges::find(set.files, names::config, &TokenizerFile::name);
  if (found == set.files.end()) return;
  ordered_json config = ordered_json::parse(found->bytes);
  const bool lists = config.contains("added_tokens_decoder");
  if (has_json && !lists && pad_token.empty()) return;
  if (!has_json || lists) {
    ordered_json decoder = ordered_json::object();
    for (const AddedToken& token : tokens) decoder[std::to_string(token.id)] = flags_of(token);
    config["added_tokens_decoder"] = std::move(decoder);
  }
  if (!pad_token.empty()) config["pad_token"] = pad_token;
  found->bytes = config.dump(2) + "\n";
}

}  // namespace llmtrain
