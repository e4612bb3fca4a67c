#include "data/tokenize/tokenizer_config.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/deck/deck.hpp"
#include "core/deck/suggestion.hpp"
#include "core/utf8.hpp"
#include "data/tokenize/train_tokenizer.hpp"

namespace llmtrain {
namespace {

struct SplitCodec {
  static std::string parse(std::string_view text, const KeyInfo&) {
    const std::vector<std::string_view> names = trainable_splits();
    return std::string(names[parse_name(text, names)]);
  }
  static std::string print(const std::string& name) { return name; }
  static std::string type() { return joined(trainable_splits(), " / "); }
};

}  // namespace

void TokenizerConfig::visit(DeckKeys& keys) {
  keys.section("tokenizer", "Control how data.tokenizer = bpe is trained on the training text.", Change::breaks,
               training_tasks | TaskSet{Task::tokenizer});
  keys.key<SplitCodec>("split", split,
                       {.doc = "Pattern that splits text into words, within which pairs are merged: that of GPT-2, "
                               "Llama 3, Qwen 2 and 3.5, GPT-4o (o200k), Mistral (tekken), DBRX."});
  keys.key(
      "unit", unit,
      {.doc =
           "line: split every line (with its end) separately, as the tokenizers package reads files; document: split a "
           "document as a whole, so that tokens can contain several line ends."});
  keys.key(
      "min_frequency", min_frequency,
      {.unit = "occurrences", .range = at_least(0), .doc = "Minimum number of occurrences of a pair that is merged."});
  keys.key("special_tokens", special_tokens,
           {.doc = "Additional special tokens, after <|endoftext|> and, with data.add_bos, <|begin_of_text|>."});
}

void TokenizerConfig::resolve(DeckLoader& deck, int64_t vocab_size, bool add_bos) const {
  const std::vector<std::string> all = training(vocab_size, add_bos).special_tokens;
  for (size_t i = 0; i < all.size(); ++i) {
    const auto first = std::ranges::find(all, all[i]);
    deck.check(!all[i].empty() && find_invalid_utf8(all[i]) == std::string::npos, {"tokenizer.special_tokens"},
               "a special token must be non-empty UTF-8 text");
    deck.check(first == all.begin() + static_cast<std::ptrdiff_t>(i), {"tokenizer.special_tokens"},
               fmt::format("{} is repeated", all[i]));
  }
  const auto least = static_cast<int64_t>(256 + all.size());
  deck.check(
      vocab_size >= least, {"data.vocab_size", "tokenizer.special_tokens"},
      fmt::format("{} is too small: 256 bytes and {} special tokens need at least {}", vocab_size, all.size(), least));
}

TokenizerTraining TokenizerConfig::training(int64_t vocab_size, bool add_bos) const {
  TokenizerTraining training;
  training.vocabulary_size = vocab_size;
  training.min_frequency = min_frequency;
  if (add_bos) {
    training.bos = begin_of_text_token;
    training.special_tokens.push_back(training.bos);
  }
  training.special_tokens.insert(training.special_tokens.end(), special_tokens.begin(), special_tokens.end());
  training.split = split;
  training.unit = unit == Unit::line ? TrainingUnit::line : TrainingUnit::document;
  return training;
}

}  // namespace llmtrain
