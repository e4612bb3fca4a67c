#pragma once
// Trains byte-level byte pair encoding on word counts: merges the most frequent pair of adjacent tokens everywhere
// until the vocabulary is full (Sennrich, Haddow and Birch 2016, on bytes as in GPT-2).

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/bpe_training/word_counts.hpp"

namespace llmtrain {

struct BpeTrainingOptions {
  /// Rule that selects among pairs that are equally frequent.
  enum class Ties : uint8_t {
    ids,    ///< the smallest pair of ids, as in the tokenizers package
    bytes,  ///< the greatest pair of byte strings, as in some textbook implementations
  };

  int64_t vocabulary_size = 30000;  ///< with special tokens and the 256 bytes
  int64_t min_frequency = 0;        ///< a less frequent pair is not merged
  std::vector<std::string> special_tokens = {};
  Ties ties = Ties::ids;
  int threads = 1;
  std::function<void(double)> progress = {};  ///< receives the completed fraction
};

/// Strings in one buffer, by index.
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

/// Ids: special tokens, then the bytes in the order of their printable characters (text/pipeline/byte_level.hpp), then
/// one token per merge. A special token whose printable form equals another token's shares its id.
struct BpeVocabulary {
  std::vector<std::string> special_tokens;
  TokenTexts tokens;  ///< by id, in printable form
  std::vector<std::pair<int32_t, int32_t>> merges;
};

inline constexpr int64_t max_bpe_tokens = int64_t{1} << 24;

/// Throws UserError(command_line) if the vocabulary is too small for bytes and special tokens, or if a special token is
/// empty, repeated or not UTF-8.
void check_bpe_options(const BpeTrainingOptions& options);

/// Trains the vocabulary, which does not depend on the order of the words or the number of threads. It is smaller than
/// requested when no pair is left. Releases the words' memory. Throws UserError like check_bpe_options.
BpeVocabulary train_bpe(WordCounts& words, const BpeTrainingOptions& options);

}  // namespace llmtrain
