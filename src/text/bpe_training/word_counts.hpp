#pragma once
// Counts of distinct words. Memory depends on the distinct words only (about 30 bytes plus the text of each), not on
// the length of the corpus.

#include <array>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace llmtrain {

/// Words and counts of a whole corpus, divided into shards by hash. Threads may add concurrently.
class WordCounts {
 public:
  static constexpr size_t shards = 64;

  void add(std::string_view word, uint64_t count = 1);
  /// Overload for a known hash of the word: hash_of(word).
  void add(uint64_t hash, std::string_view word, uint64_t count);
  static uint64_t hash_of(std::string_view word);

  uint64_t size() const;        ///< number of distinct words
  uint64_t text_bytes() const;  ///< total length of the distinct words
  uint64_t total() const;       ///< sum of the counts
  void for_each(const std::function<void(std::string_view word, uint64_t count)>& visit) const;
  /// Visits all words as above and frees their memory on the way; no word is left afterwards.
  void take_each(const std::function<void(std::string_view word, uint64_t count)>& visit);

  /// Serializes one shard for other ranks: add_serialized(serialized(s)) adds its words.
  std::string serialized(size_t shard) const;
  void add_serialized(std::string_view bytes);
  void clear();

 private:
  struct Entry {
    uint64_t count;
    uint64_t position;  // length and text of the word in `texts`
  };
  struct Shard {
    mutable std::mutex mutex;
    std::vector<uint32_t> slots;   // entry + 1, 0 = free; open addressing, size is a power of two
    std::vector<uint32_t> hashes;  // low half of each entry's hash
    std::vector<Entry> entries;
    std::string texts;

    void grow();
    void clear();
    std::string_view word(const Entry& entry) const;
  };

  std::array<Shard, shards> shards_;
};

/// Counts of one thread: recently frequent words stay here and move to the shared counts in batches.
class WordCounter {
 public:
  explicit WordCounter(WordCounts& counts);
  ~WordCounter() { flush(); }
  WordCounter(const WordCounter&) = delete;
  WordCounter& operator=(const WordCounter&) = delete;

  void add(std::string_view word) {
    const uint64_t hash = WordCounts::hash_of(word);
    for (size_t slot = hash & (slot_count - 1);; slot = (slot + 1) & (slot_count - 1)) {
      if (slots_[slot] == 0) return insert(slot, hash, word);
      Entry& entry = entries_[slots_[slot] - 1];
      if (entry.hash == hash && std::string_view(texts_).substr(entry.position, entry.length) == word) {
        ++entry.count;
        return;
      }
    }
  }
  void flush();

 private:
  static constexpr size_t slot_count = size_t{1} << 14;
  static constexpr size_t max_words = slot_count / 2;
  static constexpr size_t max_text = size_t{1} << 18;  // bytes

  struct Entry {
    uint64_t hash;
    uint64_t count;
    uint32_t position;
    uint32_t length;
  };
  void insert(size_t slot, uint64_t hash, std::string_view word);

  WordCounts& counts_;
  std::vector<uint16_t> slots_;  // entry + 1
  std::vector<Entry> entries_;
  std::string texts_;
};

}  // namespace llmtrain
