#include "text/hf_folder/json_in.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/deck/suggestion.hpp"
#include "core/error.hpp"

namespace llmtrain {
namespace {

constexpr size_t max_added_tokens = size_t{1} << 18;

int32_t token_id(const Vocabulary& vocabulary, std::string_view token, const JsonNode& node) {
  const int32_t id = vocabulary.find(token);
  if (id < 0) node.refuse(fmt::format("the token \"{}\" is not in the vocabulary", token.substr(0, 60)));
  return id;
}

/// Reads "a b" or ["a", "b"].
std::pair<std::string_view, std::string_view> merge_of(const JsonNode& merges, size_t i) {
  const nlohmann::json& merge = merges.value()[i];
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>()};
  }
  if (merge.is_string()) {
    const std::string_view text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  }
  merges.at(i).refuse("must be two tokens, \"a b\" or [\"a\", \"b\"]");
}

/// Finds the merge rule of two tokens; returns false and the problem if a token is missing.
bool make_rule(const Vocabulary& vocabulary, std::string_view left, std::string_view right, std::string_view prefix,
               MergeRule& rule, std::string& problem) {
  if (right.size() < prefix.size()) {
    problem = fmt::format("the token \"{}\" is shorter than the prefix of continuations", right.substr(0, 60));
    return false;
  }
  const std::string merged = std::string(left).append(right.substr(prefix.size()));
  rule = {vocabulary.find(left), vocabulary.find(right), vocabulary.find(merged), rule.rank};
  for (const auto& [id, token] :
       {std::pair<int32_t, std::string_view>{rule.left, left}, {rule.right, right}, {rule.merged, merged}}) {
    if (id >= 0) continue;
    problem = fmt::format("the token \"{}\" is not in the vocabulary", token.substr(0, 60));
    return false;
  }
  return true;
}

std::vector<MergeRule> read_merges(const JsonNode& node, const Vocabulary& vocabulary, const std::string& prefix) {
  std::vector<MergeRule> rules;
  rules.reserve(node.array().size());
  for (size_t i = 0; i < node.size(); ++i) {
    const auto [left, right] = merge_of(node, i);
    MergeRule rule{0, 0, 0, static_cast<uint32_t>(i)};
    std::string problem;
    if (!make_rule(vocabulary, left, right, prefix, rule, problem)) node.at(i).refuse(problem);
    rules.push_back(rule);
  }
  return rules;
}

std::string token_or_none(const JsonNode& node, std::string_view key, const Vocabulary& vocabulary) {
  std::string token = node.text_or(key, "");
  if (!token.empty()) token_id(vocabulary, token, node.at(key));
  return token;
}

/// Sections that depend on the model.
struct ModelReader {
  TokenizerSteps& steps;
  const JsonNode pre_tokenizer;

  void read(const JsonNode& node) {
    constexpr std::array<std::string_view, 4> known = {"BPE", "WordPiece", "Unigram", "WordLevel"};
    std::string type = node.text_or("type", "");
    if (type.empty()) {  // older files have no type
      type = node.has("merges") ? "BPE" : node.has("max_input_chars_per_word") ? "WordPiece" : "(none)";
    }
    if (type == "BPE") {
      read_bpe(node);
      return;
    }
    bool bytes = false;
    steps.pre_tokenizers = read_pre_tokenizer(pre_tokenizer, false, bytes);
    if (type == "WordPiece") {
      read_word_piece(node);
    } else if (type == "Unigram") {
      read_unigram(node);
    } else if (type == "WordLevel") {
      node.allow({"type", "vocab", "unk_token"});
      Vocabulary vocabulary = read_vocabulary(node.at("vocab"));
      const std::string unk = token_or_none(node, "unk_token", vocabulary);
      if (unk.empty()) node.refuse("names no unk_token");
      steps.model = make_word_level_model(std::move(vocabulary), unk);
    } else {
      node.refuse(fmt::format("the model {} is not supported{}", type, did_you_mean(type, known)));
    }
  }

  void read_bpe(const JsonNode& node) {
    node.allow({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                "byte_fallback", "ignore_merges", "vocab", "merges"});
    if (node.has("dropout") && node.at("dropout").number() != 0) {
      node.at("dropout").refuse("makes tokenization random; set it to null");
    }
    Vocabulary vocabulary = read_vocabulary(node.at("vocab"));
    BpeOptions options;
    options.unk_token = token_or_none(node, "unk_token", vocabulary);
    options.prefix = node.text_or("continuing_subword_prefix", "");
    options.suffix = node.text_or("end_of_word_suffix", "");
    options.fuse_unk = node.boolean_or("fuse_unk", false);
    options.byte_fallback = node.boolean_or("byte_fallback", false);
    options.ignore_merges = node.boolean_or("ignore_merges", false);
    const std::vector<MergeRule> merges = read_merges(node.at("merges"), vocabulary, options.prefix);
    bool bytes = false;
    steps.pre_tokenizers = read_pre_tokenizer(pre_tokenizer, can_take_bytes(vocabulary, options), bytes);
    steps.model = make_bpe_model(std::move(vocabulary), merges, options, bytes);
  }

  void read_word_piece(const JsonNode& node) {
    node.allow({"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"});
    Vocabulary vocabulary = read_vocabulary(node.at("vocab"));
    WordPieceOptions options;
    options.unk_token = node.at("unk_token").text();
    token_id(vocabulary, options.unk_token, node.at("unk_token"));
    options.prefix = node.at("continuing_subword_prefix").text();
    options.max_characters = static_cast<size_t>(node.at("max_input_chars_per_word").integer_between(0, INT64_MAX));
    steps.model = make_word_piece_model(std::move(vocabulary), options);
  }

  void read_unigram(const JsonNode& node) {
    node.allow({"type", "unk_id", "vocab", "byte_fallback"});
    const JsonNode list = node.at("vocab");
    Vocabulary vocabulary;
    std::vector<double> scores;
    for (size_t i = 0; i < list.array().size(); ++i) {
      const JsonNode entry = list.at(i);
      if (entry.array().size() != 2) entry.refuse("must be a token with its score");
      const std::string& token = entry.at(size_t{0}).text();
      if (token.size() > longest_token) entry.refuse(fmt::format("a token of more than {} bytes", longest_token));
      if (vocabulary.add(token, static_cast<int32_t>(i)) != Vocabulary::Added::yes)
        entry.refuse("the token is repeated");
      scores.push_back(entry.at(size_t{1}).number());
    }
    if (scores.empty()) list.refuse("is empty");
    const int64_t limit = static_cast<int64_t>(scores.size());
    const int64_t unk = node.has("unk_id") ? node.at("unk_id").integer_between(0, limit - 1) : -1;
    steps.model = make_unigram_model(std::move(vocabulary), std::move(scores), static_cast<int32_t>(unk),
                                     node.boolean_or("byte_fallback", false));
  }
};

/// The library assigns ids itself, whatever the file says: the model's id, otherwise the next free one. A file with
/// other ids would not mean what it says.
std::vector<AddedToken> read_added_tokens(const JsonNode& list, const Vocabulary& vocabulary) {
  std::vector<AddedToken> tokens;
  if (list.is_null()) return tokens;
  if (list.array().size() > max_added_tokens) list.refuse(fmt::format("more than {} tokens", max_added_tokens));
  Vocabulary added;
  int64_t next = vocabulary.size();
  for (size_t i = 0; i < list.size(); ++i) {
    const JsonNode node = list.at(i);
    node.allow({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    token.content = node.at("content").text();
    if (token.content.size() > longest_token) node.refuse(fmt::format("a token of more than {} bytes", longest_token));
    if (token.content.empty()) continue;
    token.single_word = node.boolean_or("single_word", false);
    token.lstrip = node.boolean_or("lstrip", false);
    token.rstrip = node.boolean_or("rstrip", false);
    token.normalized = node.boolean_or("normalized", true);
    token.special = node.boolean_or("special", false);
    if (added.find(token.content) >= 0) node.refuse("the token is added twice");
    const int32_t known = vocabulary.find(token.content);
    const int64_t id = node.at("id").integer_between(0, INT32_MAX - 1);
    const int64_t expected = known >= 0 ? known : next;
    if (id != expected) {
      node.refuse(fmt::format("the id of the token \"{}\" is {}, but must be {}{}", token.content.substr(0, 60), id,
                              expected, known >= 0 ? " as in the vocabulary" : ", the next free one"));
    }
    if (known < 0) {
      if (vocabulary.has(static_cast<int32_t>(id))) node.refuse(fmt::format("the id {} is that of another token", id));
      ++next;
    }
    token.id = static_cast<int32_t>(id);
    added.add(token.content, static_cast<int32_t>(i));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

}  // namespace

Vocabulary read_vocabulary(const JsonNode& node) {
  Vocabulary vocabulary;
  const int64_t most = static_cast<int64_t>(node.object().size()) + max_unused_ids;
  for (const auto& [token, id] : node.value().items()) {
    const auto refuse = [&, &token = token](const std::string& what) {
      node.refuse(fmt::format("the token \"{}\" {}", token.substr(0, 60), what));
    };
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(most)) {
      refuse(fmt::format("must have an id from 0 to {}, not {}", most - 1, id.dump().substr(0, 60)));
    }
    if (token.size() > longest_token) refuse(fmt::format("has more than {} bytes", longest_token));
    const auto number = static_cast<int32_t>(id.get<uint64_t>());
    if (vocabulary.add(token, number) != Vocabulary::Added::yes) {
      refuse(fmt::format("has the id {}, as \"{}\" has", number, vocabulary.token(number)));
    }
  }
  if (vocabulary.size() == 0) node.refuse("is empty");
  return vocabulary;
}

std::vector<MergeRule> read_merge_lines(std::string_view text, const std::string& name, const Vocabulary& vocabulary) {
  std::vector<MergeRule> rules;
  int64_t line_number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.starts_with("#version")) continue;
    const size_t space = line.find(' ');
    std::string problem = "must be two tokens with a space between them";
    MergeRule rule{0, 0, 0, static_cast<uint32_t>(rules.size())};
    const bool two = space != std::string_view::npos && line.find(' ', space + 1) == std::string_view::npos;
    if (!two || !make_rule(vocabulary, line.substr(0, space), line.substr(space + 1), "", rule, problem)) {
      throw UserError(ExitCode::bad_content, fmt::format("{}:{}: {}", name, line_number, problem));
    }
    rules.push_back(rule);
  }
  return rules;
}

TokenizerSteps read_tokenizer_json(std::string_view text, const std::string& name,
                                   const TokenizerJsonChanges& changes) {
  nlohmann::json document = parse_json(text, name, tokenizer_limits);
  if (changes.document) changes.document(document);
  const JsonNode root(document, name);
  root.allow({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
              "decoder", "model"});
  if (root.text_or("version", "1.0") != "1.0") root.at("version").refuse("only version 1.0 is supported");
  const nlohmann::json none;
  const auto section = [&](std::string_view key) {
    return root.has(key) ? root.at(key) : JsonNode(none, fmt::format("{}.{}", name, key));
  };
  TokenizerSteps steps;
  ModelReader{steps, section("pre_tokenizer")}.read(root.at("model"));
  steps.normalizers = read_normalizer(section("normalizer"));
  const Vocabulary& vocabulary = steps.model->vocabulary();
  std::vector<AddedToken> added = read_added_tokens(section("added_tokens"), vocabulary);
  if (changes.added) added = changes.added(std::move(added), vocabulary);
  int64_t id_limit = vocabulary.id_limit();
  for (const AddedToken& token : added) id_limit = std::max(id_limit, int64_t{token.id} + 1);
  steps.added = AddedTokens(std::move(added), steps.normalizers);
  for (const AddedToken& token : steps.added.tokens()) {
    if (!token.in_text || !token.found.empty()) continue;
    const std::string what = "the normalizer removes all of the token " + printable(token.content);
    section("added_tokens").refuse(what + ", which would be found everywhere (\"normalized\": false keeps it)");
  }
  steps.post = read_post_processor(section("post_processor"), id_limit);
  if (changes.post) changes.post(steps.post);
  steps.has_decoder = root.has("decoder");
  steps.decoders = read_decoder(section("decoder"));
  return steps;
}

}  // namespace llmtrain
