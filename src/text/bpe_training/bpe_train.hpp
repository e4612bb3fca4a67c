#pragma once
// Byte-level byte pair encoding, learnt from the counts of words: merge the most frequent pair of neighbours,
// everywhere, until the vocabulary is full (Sennrich, Haddow and Birch 2016, on bytes as in GPT-2).

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/bpe_training/word_counts.hpp"

namespace llmtrain {

struct BpeTrainingOptions {
  /// Which of several pairs that occur equally often is merged.
  enum class Ties : uint8_t {
    ids,    ///< the smallest pair of ids, as the tokenizers package does
    bytes,  ///< the greatest pair of byte strings, as in some teaching implementations
  };

  int64_t vocabulary_size = 30000;  ///< special tokens and the 256 bytes included
  int64_t min_frequency = 0;        ///< a pair that occurs less often is not merged
  std::vector<std::string> special_tokens = {};
  Ties ties = Ties::ids;
  int threads = 1;
  std::function<void(double)> progress = {};  ///< the share that is done
};

/// Strings one after the other, by index.
class TokenTexts {
 public:
  size_t size() const { return ends_.size(); }
  std::string_view operator[](size_t i) const {
    const size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(text_).substr(begin, ends_[i] - begin);
  }
  void reserve(size_t count) { ends_.reserve(count); }
  void add(std::string_view token) {
    text_ += token;
    ends_.push_back(text_.size());
  }

 private:
  std::string text_;
  std::vector<size_t> ends_;
};

/// Ids: special tokens, the bytes in the order of their printable characters (text/pipeline/byte_level.hpp), then a
/// token for each merge. A special token that reads like one of the others in printable form shares its id.
struct BpeVocabulary {
  std::vector<std::string> special_tokens;
  TokenTexts tokens;  ///< by id, in printable form
  std::vector<std::pair<int32_t, int32_t>> merges;
};

inline constexpr int64_t max_bpe_tokens = int64_t{1} << 24;

/// UserError(command_line) for a vocabulary that has no room for bytes and special tokens, a special token that is
/// empty, named twice or not UTF-8.
void check_bpe_options(const BpeTrainingOptions& options);

/// The vocabulary, and the same for every order of the words and number of threads. It is smaller than asked for when
/// no pair is left. Takes the words' memory. UserError as check_bpe_options.
BpeVocabulary train_bpe(WordCounts& words, const BpeTrainingOptions& options);

}  // namespace llmtrain
