#pragma once
// Documents that occur again: exactly, by a hash of their bytes, or nearly, by SimHash (Charikar, "Similarity
// estimation techniques from rounding algorithms", STOC 2002; search as in Manku, Jain, Das Sarma, "Detecting
// near-duplicates for web crawling", WWW 2007).

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace llmtrain {

/// Sums for the 64 bits of a SimHash over all runs of three words (white space divides words; ASCII case is ignored).
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
  bool has_words = false;  ///< enough of them for `similar` to mean something
};

struct DuplicateCounts {
  int64_t exact = 0;  ///< documents whose bytes an earlier one has
  int64_t near = 0;   ///< others that differ from an earlier one in at most near_bits bits of the SimHash
  // Pairs, the first few: (earlier, later)
  std::vector<std::array<int64_t, 2>> exact_pairs, near_pairs;
};

inline constexpr int near_bits = 3;            ///< of 64: all but about 1 or 2 % of the runs of words are the same
inline constexpr int64_t min_runs = 8;         ///< of a document that is compared
inline constexpr int64_t max_compared = 1000;  ///< with one document in each of four orders, which bounds the time

/// Bits 16 b to 16 b + 15 of two hashes that differ in three bits are equal for one b at least: in each of four orders,
/// sorted by those bits first, a document is compared with the ones before it that share them, max_compared at most.
DuplicateCounts find_duplicates(const std::vector<DocumentPrint>& prints, size_t max_pairs);

}  // namespace llmtrain
