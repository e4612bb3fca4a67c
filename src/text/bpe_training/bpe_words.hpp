#pragma once
// Distinct words as sequences of tokens, for training: all words lie one after the other in one array with a slot for
// each byte, so that a merge moves nothing.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/error.hpp"
#include "text/bpe_training/word_counts.hpp"

namespace llmtrain {

/// A token that is n bytes long fills n slots; the first and the last hold its id. Between words is a border.
template <class Id>
class BpeWords {
 public:
  static constexpr Id border = std::numeric_limits<Id>::max();
  static constexpr Id interior = border - 1;  // where a token began that is part of a longer one now
  static constexpr size_t max_slots = UINT32_MAX;

  /// Words of at least two bytes, taken from `words`; `id_of_byte` has 256 entries.
  BpeWords(WordCounts& words, const std::vector<int32_t>& id_of_byte) {
    size_t slots = 1, count = 0;
    words.for_each([&](std::string_view word, uint64_t) {
      if (word.size() < 2) return;
      slots += word.size() + 1;
      ++count;
    });
    if (slots > max_slots) {
      throw UserError(ExitCode::bad_content,
                      "the distinct words of the training text take more than 4 GiB: train on a part of the text");
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

  /// visit(slot of the left token, left id, right id, occurrences of the word) for all neighbours, in order of slots.
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

  /// How often the word that a slot belongs to occurs.
  uint64_t count_at(size_t slot) const {
    const size_t begin = slot / block * block;
    const auto first = slots_.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto borders = std::count(first, first + static_cast<std::ptrdiff_t>(slot - begin), border);
    return counts_[word_of_block_[slot / block] + static_cast<size_t>(borders) - 1];
  }

  /// That the slot and the count of its word will be asked for.
  void prefetch(size_t slot) const {
    __builtin_prefetch(slots_.data() + slot);
    __builtin_prefetch(counts_.data() + word_of_block_[slot / block]);
  }

  /// The tokens at `slot` (of `left_bytes`) and behind it (of `right_bytes`) become the token `id`.
  void merge(size_t slot, size_t left_bytes, size_t right_bytes, Id id) {
    slots_[slot + left_bytes] = interior;
    slots_[slot] = id;
    slots_[slot + left_bytes + right_bytes - 1] = id;
  }

 private:
  static constexpr size_t block = 64;

  std::vector<Id> slots_;
  std::vector<uint64_t> counts_;         // of each word
  std::vector<uint32_t> word_of_block_;  // borders before each block of slots
};

}  // namespace llmtrain
