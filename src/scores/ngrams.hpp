#pragma once
// Words of texts, and n-grams of tokens as numbers, so that texts are compared by sorted lists of integers.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace llmtrain {

/// Splits at white space as Python's str.split() does.
std::vector<std::string_view> split_words(std::string_view text);
/// Returns the stem of a word in lower case (ASCII) by Porter's algorithm with the extensions of NLTK 3.
std::string porter_stem(std::string word);

using NgramIds = std::vector<uint32_t>;

/// Numbers the tokens and n-grams of a segment's texts: equal ones get equal numbers.
class NgramTable {
 public:
  NgramIds tokens(std::span<const std::string_view> words);
  /// Returns the code points that are not white space.
  NgramIds characters(std::string_view text);
  /// Returns for each order from 1 to `orders` the text's n-grams in ascending order, repeated as often as they occur.
  std::vector<NgramIds> ngrams(const NgramIds& tokens, size_t orders);

 private:
  uint32_t next_ = 0x110000;  // code points have numbers of their own
  std::unordered_map<std::string, uint32_t> words_;
  std::unordered_map<uint64_t, uint32_t> longer_;  // (number of the first n - 1 tokens, last token)
};

/// Returns the number of common elements of two sorted lists, each counted as often as both have it.
int64_t count_common(const NgramIds& a, const NgramIds& b);

/// Returns the length of the longest common subsequence.
int64_t common_subsequence_length(const NgramIds& reference, const NgramIds& candidate);
/// Returns the positions in the reference of one longest common subsequence: of several the one that rouge-score finds.
/// Takes a bit for each pair of tokens; UserError(bad_content) beyond 1 GiB.
std::vector<size_t> common_subsequence(const NgramIds& reference, const NgramIds& candidate);

}  // namespace llmtrain
