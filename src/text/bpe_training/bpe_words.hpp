#pragma once
// Distinct words as token sequences for training: one array holds all words, with one slot per byte, so that a merge
// moves nothing.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/error.hpp"
#include "text/bpe_training/word_counts.hpp"

namespace llmtrain {

/// A token of n bytes occupies n slots; the first and the last hold its id. A border separates words.
template <class Id>
class BpeWords {
 public:
  static constexpr Id border = std::numeric_limits<Id>::max();
  static constexpr Id interior = border - 1;  // first slot of a token that is now part of a longer one
  static constexpr size_t max_slots = UINT32_MAX;

  /// Takes the words of at least two bytes from `words`; `id_of_byte` has 256 entries.
  BpeWords(WordCounts& words, const std::vector<int32_t>& id_of_byte) {
    size_t slots = 1, count = 0;
    words.for_each([&](std::string_view word, uint64_t) {
      if (word.size() < 2) return;
      slots += word.size() + 1;
      ++count;
    });
    if (slots > max_slots) {
      throw UserError(ExitCode::bad_content,
                      "the distinct words of the training text take more than 4 GiB; train on less text");
    }
    slots_.reserve(slots);
    counts_.reserve(count);
    slots_.push_back(border);
    words.take_each([&](std::string_view word, uint64_t occurrences) {
      if (word.size() < 2) return;
      for (const char byte : word) slots_.push_back(static_cast<Id>(id_of_byte[static_cast<uint8_t>(byte)]));
      slots_.push_back(border);
      counts_.push_back(occurrences);
    });
    word_of_block_.reserve(slots / block + 1);
    uint32_t borders = 0;
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (i % block == 0) word_of_block_.push_back(borders);
      if (slots_[i] == border) ++borders;
    }
  }

  size_t slots() const { return slots_.size(); }
  Id at(size_t slot) const { return slots_[slot]; }

  /// Calls visit(slot of the left token, left id, right id, occurrences of the word) for all adjacent tokens, in order
  /// of slots.
  template <class Visit>
  void for_each_pair(const std::vector<uint32_t>& bytes_of_id, const Visit& visit) const {
    size_t slot = 1;
    for (const uint64_t count : counts_) {
      Id left = slots_[slot];
      for (size_t next = slot + bytes_of_id[left]; slots_[next] != border; next += bytes_of_id[left]) {
        visit(slot, left, slots_[next], count);
        slot = next;
        left = slots_[next];
      }
      slot += bytes_of_id[left] + 1;
    }
  }

  /// Returns the number of occurrences of the word that contains the slot.
  uint64_t count_at(size_t slot) const {
    const size_t begin = slot / block * block;
    const auto first = slots_.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto borders = std::count(first, first + static_cast<std::ptrdiff_t>(slot - begin), border);
    return counts_[word_of_block_[slot / block] + static_cast<size_t>(borders) - 1];
  }

  /// Prefetches the slot and the count of its word.
  void prefetch(size_t slot) const {
    __builtin_prefetch(slots_.data() + slot);
    __builtin_prefetch(counts_.data() + word_of_block_[slot / block]);
  }

  /// Replaces the tokens at `slot` (`left_bytes` long) and after it (`right_bytes` long) with the token `id`.
  void merge(size_t slot, size_t left_bytes, size_t right_bytes, Id id) {
    slots_[slot + left_bytes] = interior;
    slots_[slot] = id;
    slots_[slot + left_bytes + right_bytes - 1] = id;
  }

 private:
  static constexpr size_t block = 64;

  std::vector<Id> slots_;
  std::vector<uint64_t> counts_;         // per word
  std::vector<uint32_t> word_of_block_;  // number of borders before each block of slots
};

}  // namespace llmtrain
