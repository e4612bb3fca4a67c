#pragma once
// Frequent pairs of adjacent tokens during BPE training: their counts, and the slots where they can occur.

#include <cstdint>
#include <vector>

namespace llmtrain {

/// Two ids as one number, which sorts like the pair.
using BpePair = uint64_t;
inline BpePair bpe_pair(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }
inline uint32_t left_of(BpePair pair) { return static_cast<uint32_t>(pair >> 32); }
inline uint32_t right_of(BpePair pair) { return static_cast<uint32_t>(pair); }

/// The finalizer of SplitMix64.
inline uint64_t hash_of_pair(BpePair pair) {
  pair = (pair ^ (pair >> 30)) * 0xBF58476D1CE4E5B9u;
  pair = (pair ^ (pair >> 27)) * 0x94D049BB133111EBu;
  return pair ^ (pair >> 31);
}

/// Hash table from pairs to records.
class BpePairTable {
 public:
  static constexpr BpePair free = UINT64_MAX;
  struct Record {
    BpePair pair = free;
    int64_t count = 0;       // occurrences in the corpus
    uint32_t positions = 0;  // index of its first slot in the list of positions
    uint32_t slots = 0;      // number of slots
    bool is_free() const { return pair == free; }
  };

  BpePairTable() { clear(); }
  size_t size() const { return size_; }
  const std::vector<Record>& records() const { return records_; }  ///< with free records

  Record* find(BpePair pair) {
    for (size_t r = home(pair);; r = (r + 1) & mask()) {
      if (records_[r].pair == pair) return &records_[r];
      if (records_[r].is_free()) return nullptr;
    }
  }
  /// Returns the record of `pair`, or a new one with count 0. This can move other records.
  Record& insert(BpePair pair) {
    if ((size_ + 1) * 4 > records_.size() * 3) grow();
    size_t r = home(pair);
    for (; !records_[r].is_free(); r = (r + 1) & mask()) {
      if (records_[r].pair == pair) return records_[r];
    }
    records_[r].pair = pair;
    ++size_;
    return records_[r];
  }
  void erase(BpePair pair) {
    Record* record = find(pair);
    if (record == nullptr) return;
    size_t hole = static_cast<size_t>(record - records_.data());
    for (size_t r = (hole + 1) & mask(); !records_[r].is_free(); r = (r + 1) & mask()) {
      // a record can move to the hole unless the hole lies before its home
      if (((r - home(records_[r].pair)) & mask()) < ((r - hole) & mask())) continue;
      records_[hole] = records_[r];
      hole = r;
    }
    records_[hole] = Record{};
    --size_;
  }
  template <class Condition>
  void erase_if(const Condition& condition) {
    std::vector<Record> old;
    old.swap(records_);
    size_t kept = 0;
    for (const Record& record : old) kept += !record.is_free() && !condition(record) ? 1 : 0;
    size_t capacity = first_size;
    while (kept * 2 > capacity) capacity *= 2;
    records_.assign(capacity, Record{});
    size_ = 0;
    for (const Record& record : old) {
      if (!record.is_free() && !condition(record)) insert(record.pair) = record;
    }
  }
  template <class Visit>
  void for_each_used(const Visit& visit) {
    for (Record& record : records_) {
      if (!record.is_free()) visit(record);
    }
  }
  void clear() {
    records_.assign(first_size, Record{});
    size_ = 0;
  }

 private:
  static constexpr size_t first_size = 256;
  size_t mask() const { return records_.size() - 1; }
  size_t home(BpePair pair) const { return hash_of_pair(pair) & mask(); }
  void grow() {
    std::vector<Record> old(records_.size() * 2);
    old.swap(records_);
    size_ = 0;
    for (const Record& record : old) {
      if (!record.is_free()) insert(record.pair) = record;
    }
  }

  std::vector<Record> records_;
  size_t size_ = 0;
};

}  // namespace llmtrain
