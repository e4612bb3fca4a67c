#include "text/hf_folder/vocabulary_files.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <utility>

#include "core/error.hpp"
#include "text/hf_folder/base64.hpp"
#include "text/hf_folder/json_in.hpp"
#include "text/pipeline/byte_level.hpp"

namespace llmtrain {
namespace {

constexpr size_t longest_ranked_token = 512;  // bytes; all splits of a token are looked up
constexpr int64_t llama3_ranks = 128'000;
constexpr int32_t llama3_special_tokens = 256;

/// Returns Llama 3.1's names of the 256 ids after the ranks.
std::string llama3_special_name(int32_t index) {
  constexpr std::array<std::pair<int32_t, std::string_view>, 9> named = {{{0, "<|begin_of_text|>"},
                                                                          {1, "<|end_of_text|>"},
                                                                          {4, "<|finetune_right_pad_id|>"},
                                                                          {6, "<|start_header_id|>"},
                                                                          {7, "<|end_header_id|>"},
                                                                          {8, "<|eom_id|>"},
                                                                          {9, "<|eot_id|>"},
                                                                          {10, "<|python_tag|>"},
                                                                          {INT32_MAX, ""}}};
  int32_t reserved = 0;
  for (const auto& [place, name] : named) {
    if (place == index) return std::string(name);
    if (place > index) break;
    reserved += 1;
  }
  return fmt::format("<|reserved_special_token_{}|>", index - reserved);
}

/// Every split of a token into two tokens is a merge of the token's rank, since tiktoken joins any two byte sequences
/// whose union is a token.
void add_splits(std::string_view bytes, int32_t rank, const Vocabulary& ranks, std::vector<MergeRule>& merges) {
  for (size_t length = 1; length < bytes.size(); ++length) {
    const int32_t left = ranks.find(bytes.substr(0, length));
    if (left < 0) continue;
    const int32_t right = ranks.find(bytes.substr(length));
    if (right >= 0) merges.push_back({left, right, rank, static_cast<uint32_t>(rank)});
  }
}

Vocabulary read_ranks(std::string_view text, const std::string& name) {
  Vocabulary ranks;
  std::string bytes;
  int64_t line_number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const auto refuse = [&](const std::string& what) {
      throw UserError(ExitCode::bad_content, fmt::format("{}:{}: {}", name, line_number, what));
    };
    const size_t space = line.find(' ');
    if (space == std::string_view::npos || !from_base64(line.substr(0, space), bytes) || bytes.empty()) {
      refuse("must be the bytes of a token in base64, a space and its rank");
    }
    int32_t rank = -1;
    const char* last = line.data() + line.size();
    const auto [stop, error] = std::from_chars(line.data() + space + 1, last, rank);
    if (error != std::errc() || stop != last || rank < 0 || rank >= line_number + max_unused_ids) {
      refuse("the rank must be a number; ranks count from 0 without gaps");
    }
    if (bytes.size() > longest_ranked_token) refuse(fmt::format("a token of more than {} bytes", longest_ranked_token));
    if (ranks.add(bytes, rank) != Vocabulary::Added::yes) refuse("the token or the rank is repeated");
  }
  return ranks;
}

}  // namespace

TokenizerSteps read_gpt2_files(std::string_view vocab_json, std::string_view merges_txt, const std::string& vocab_name,
                               const std::string& merges_name, bool add_prefix_space, const AddTokens& add) {
  const nlohmann::json document = parse_json(vocab_json, vocab_name, tokenizer_limits);
  Vocabulary vocabulary = read_vocabulary(JsonNode(document, vocab_name));
  const std::vector<MergeRule> merges = read_merge_lines(merges_txt, merges_name, vocabulary);
  const BpeOptions options;
  if (!can_take_bytes(vocabulary, options)) {
    throw UserError(ExitCode::bad_content,
                    vocab_name + ": some bytes have no token, so this is not a vocabulary of GPT-2's kind");
  }
  TokenizerSteps steps;
  std::vector<AddedToken> added;
  if (const int32_t end = vocabulary.find("<|endoftext|>"); end >= 0) {
    added.push_back({.content = "<|endoftext|>", .id = end, .special = true});
  }
  if (add) added = add(std::move(added), vocabulary);
  if (add_prefix_space) steps.pre_tokenizers.push_back(make_prefix_space());
  steps.pre_tokenizers.push_back(make_pattern_split(*SplitPattern::find_name("gpt2"), SplitBehavior::isolated, false));
  steps.model = make_bpe_model(std::move(vocabulary), merges, options, true);
  steps.added = AddedTokens(std::move(added), steps.normalizers);
  steps.has_decoder = true;
  steps.decoders.push_back(make_byte_level_decoder());
  return steps;
}

TokenizerSteps read_tiktoken_file(std::string_view text, const std::string& name) {
  if (static_cast<int64_t>(text.size()) > max_tiktoken_file) {
    throw UserError(ExitCode::bad_content, name + ": it is too long for a file of ranks");
  }
  const Vocabulary ranks = read_ranks(text, name);
  const auto refuse = [&](const std::string& what) { throw UserError(ExitCode::bad_content, name + ": " + what); };
  if (ranks.size() != ranks.id_limit()) refuse("some ranks are missing");
  if (ranks.size() != llama3_ranks) {
    refuse(fmt::format(
        "the file has {} ranks; only Llama 3's {} are supported, since the split and special tokens are not in the "
        "file; use its tokenizer.json",
        ranks.size(), llama3_ranks));
  }
  Vocabulary vocabulary;
  std::vector<MergeRule> merges;
  for (int32_t rank = 0; rank < ranks.id_limit(); ++rank) {
    vocabulary.add(to_byte_level(ranks.token(rank)), rank);
    add_splits(ranks.token(rank), rank, ranks, merges);
  }
  BpeOptions options;
  options.ignore_merges = true;
  if (!can_take_bytes(vocabulary, options)) refuse("some bytes have no token");
  std::vector<AddedToken> special;  // as in tiktoken, text that looks like a special token is text
  special.reserve(llama3_special_tokens);
  for (int32_t i = 0; i < llama3_special_tokens; ++i) {
    special.push_back({.content = llama3_special_name(i),
                       .id = static_cast<int32_t>(llama3_ranks) + i,
                       .special = true,
                       .in_text = false});
  }
  TokenizerSteps steps;
  steps.post.before.push_back(special[0].id);
  steps.pre_tokenizers.push_back(
      make_pattern_split(*SplitPattern::find_name("llama3"), SplitBehavior::isolated, false));
  steps.model = make_bpe_model(std::move(vocabulary), merges, options, true);
  steps.added = AddedTokens(std::move(special), steps.normalizers);
  steps.has_decoder = true;
  steps.decoders.push_back(make_byte_level_decoder());
  return steps;
}

}  // namespace llmtrain
