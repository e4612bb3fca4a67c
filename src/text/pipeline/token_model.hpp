#pragma once
// Models turn one word into tokens.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/pipeline/aligned_text.hpp"
#include "text/pipeline/vocabulary.hpp"

namespace llmtrain {

/// Collects tokens; ranges are appended only if requested.
struct TokenSink {
  std::vector<int32_t>& ids;
  std::vector<TextRange>* ranges = nullptr;  ///< range of each id in the word

  void add(int32_t id, size_t begin, size_t end) {
    ids.push_back(id);
    if (ranges != nullptr) ranges->push_back({begin, end});
  }
};

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  virtual std::string kind() const = 0;  ///< "bpe", "wordpiece", "unigram"
  /// Encodes a non-empty word.
  virtual void tokenize(std::string_view word, TokenSink sink) const = 0;
  virtual const Vocabulary& vocabulary() const = 0;
  /// Returns true if tokenize() takes the original bytes instead of GPT-2's byte form.
  virtual bool takes_bytes() const { return false; }
  /// Returns true if a word gives the same tokens when it is cut before every U+2581 that follows another character.
  virtual bool words_are_separate() const { return false; }
};

struct BpeOptions {
  std::string unk_token;  ///< empty: none
  std::string prefix;     ///< continuing_subword_prefix
  std::string suffix;     ///< end_of_word_suffix
  bool fuse_unk = false;
  bool byte_fallback = false;
  bool ignore_merges = false;
};
struct MergeRule {
  int32_t left, right, merged;
  uint32_t rank;  ///< lower ranks first; of equal ones the leftmost
};
/// With `bytes`, words are bytes (takes_bytes); this is possible if every byte has a token and neither prefix nor
/// suffix is used (can_take_bytes).
std::unique_ptr<TokenModel> make_bpe_model(Vocabulary vocabulary, const std::vector<MergeRule>& merges,
                                           const BpeOptions& options, bool bytes);
bool can_take_bytes(const Vocabulary& vocabulary, const BpeOptions& options);

struct WordPieceOptions {
  std::string unk_token = "[UNK]";
  std::string prefix = "##";
  size_t max_characters = 100;  ///< longer words are unknown
};
std::unique_ptr<TokenModel> make_word_piece_model(Vocabulary vocabulary, const WordPieceOptions& options);
/// Looks up whole words only.
std::unique_ptr<TokenModel> make_word_level_model(Vocabulary vocabulary, const std::string& unk_token);

/// An id is an index into `scores`; -1 means no unknown token.
std::unique_ptr<TokenModel> make_unigram_model(Vocabulary vocabulary, std::vector<double> scores, int32_t unk_id,
                                               bool byte_fallback);

}  // namespace llmtrain
