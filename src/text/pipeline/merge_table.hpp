#pragma once
// Merges of byte pair encoding and the algorithm that applies them.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace llmtrain {

class MergeTable {
 public:
  struct Merge {
    uint32_t rank;
    int32_t id;
  };
  static constexpr uint32_t no_rank = UINT32_MAX;

  explicit MergeTable(size_t expected = 0);
  /// Replaces the merge of a pair that is already there.
  void set(int32_t left, int32_t right, const Merge& merge);
  /// Returns a merge whose rank is no_rank if the pair is not merged.
  Merge find(int32_t left, int32_t right) const {
    const uint64_t key = key_of(left, right);
    for (size_t slot = slot_of(key);; slot = (slot + 1) & mask_) {
      if (slots_[slot].key == key) return slots_[slot].merge;
      if (slots_[slot].key == empty) return {no_rank, -1};
    }
  }

 private:
  struct Slot {
    uint64_t key;
    Merge merge;
  };
  static constexpr uint64_t empty = UINT64_MAX;  // ids are not negative
  static uint64_t key_of(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t key) const { return static_cast<size_t>((key * 0x9E3779B97F4A7C15u) >> shift_); }

  std::vector<Slot> slots_;
  size_t mask_ = 0;
  int shift_ = 0;
};

/// Symbol of a word while it is merged into tokens.
struct BpeSymbol {
  int32_t id;
  uint32_t length;  ///< bytes of the word
};

/// Merges in place the pair of the lowest rank, the leftmost of equal ones, until no pair is left. Short words by
/// looking at every pair, long ones through a heap: n log n.
void apply_merges(const MergeTable& table, std::vector<BpeSymbol>& symbols);

}  // namespace llmtrain
