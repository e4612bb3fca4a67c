#include "text/hf_folder/added_token_output.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "text/unicode/characters.hpp"

namespace llmtrain {
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
