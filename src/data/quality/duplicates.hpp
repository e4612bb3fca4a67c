#pragma once
// Detects repeated documents: exact copies by a hash of their bytes, near copies by SimHash (Charikar, "Similarity
// estimation techniques from rounding algorithms", STOC 2002; search as in Manku, Jain, Das Sarma, "Detecting
// near-duplicates for web crawling", WWW 2007).

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace llmtrain {

/// Sums for the 64 bits of a SimHash over all runs of three words (white space separates words; ASCII case is ignored).
class SimHash {
 public:
  void add(std::string_view text);
  uint64_t bits() const;
  int64_t runs() const { return runs_; }

 private:
  std::array<int32_t, 64> sums_{};
  int64_t runs_ = 0;
};

struct DocumentPrint {
  uint64_t content = 0;    ///< XXH3 of all bytes
  uint64_t similar = 0;    ///< SimHash
  bool has_words = false;  ///< True if it has enough words for `similar` to be meaningful
};

struct DuplicateCounts {
  int64_t exact = 0;  ///< documents with the same bytes as an earlier one
  int64_t near = 0;   ///< others that differ from an earlier one in at most near_bits bits of the SimHash
  // First few pairs: (earlier, later)
  std::vector<std::array<int64_t, 2>> exact_pairs, near_pairs;
};

inline constexpr int near_bits = 3;     ///< of 64 bits: all but about 1 or 2 % of the runs of words are equal
inline constexpr int64_t min_runs = 8;  ///< minimum number of runs for a comparison
/// Comparisons per document in each of four orders, which bounds the time.
inline constexpr int64_t max_compared = 1000;

/// If two hashes differ in three bits, bits 16 b to 16 b + 15 are equal for at least one b: in each of four orders,
/// sorted by those bits first, a document is compared with the ones before it that share them, max_compared at most.
DuplicateCounts find_duplicates(const std::vector<DocumentPrint>& prints, size_t max_pairs);

}  // namespace llmtrain
