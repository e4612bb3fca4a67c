#pragma once
// Cache of the tokens of repeated words. One per thread and tokenizer, of fixed size; the latest word takes the slot.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "text/pipeline/vocabulary.hpp"

namespace llmtrain {

class WordCache {
 public:
  static constexpr size_t longest_key = 22;  ///< bytes
  static constexpr size_t max_ids = 10;

  /// Appends the ids of the word if it is cached.
  bool get(std::string_view word, uint64_t hash, std::vector<int32_t>& ids) const {
    const Slot& slot = slots_[hash & (slots_.size() - 1)];
    if (slot.length != word.size() || std::memcmp(slot.key, word.data(), word.size()) != 0) return false;
    ids.insert(ids.end(), slot.ids, slot.ids + slot.count);
    return true;
  }
  void put(std::string_view word, uint64_t hash, const int32_t* ids, size_t count) {
    if (word.size() > longest_key || count > max_ids) return;
    Slot& slot = slots_[hash & (slots_.size() - 1)];
    slot.length = static_cast<uint8_t>(word.size());
    slot.count = static_cast<uint8_t>(count);
    std::memcpy(slot.key, word.data(), word.size());
    std::copy_n(ids, count, slot.ids);  // an empty list has no address
  }

  /// Returns this thread's cache for the tokenizer whose number new_owner() gave.
  static WordCache& of_thread(uint64_t owner) {
    struct Owned {
      uint64_t owner = 0;
      std::unique_ptr<WordCache> cache;
    };
    // A thread uses one tokenizer at a time; two caches are kept, since training and validation can differ.
    thread_local std::array<Owned, 2> caches;
    thread_local size_t latest = 0;
    if (caches[latest].owner == owner) return *caches[latest].cache;
    latest = 1 - latest;
    Owned& owned = caches[latest];
    if (owned.owner != owner) owned = {owner, std::make_unique<WordCache>()};
    return *owned.cache;
  }
  static uint64_t new_owner() {
    static std::atomic<uint64_t> last{0};
    return ++last;
  }

 private:
  struct alignas(64) Slot {
    uint8_t length = 0;  // no word is empty
    uint8_t count = 0;
    char key[longest_key];
    int32_t ids[max_ids];
  };
  static_assert(sizeof(Slot) == 64);

  std::vector<Slot> slots_ = std::vector<Slot>(size_t{1} << 15);
};

}  // namespace llmtrain
