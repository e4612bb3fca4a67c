#pragma once
// BPE training keeps only the frequent pairs of adjacent tokens and their positions: every pair that occurs at least
// threshold() times. When these are used up, all pairs are counted again and the threshold is lowered. Memory is thus a
// fraction of that of the words; a list of all pairs' positions would take several times as much.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "core/parallel_for.hpp"
#include "text/bpe_training/bpe_words.hpp"

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

template <class Id>
class BpeHotPairs {
 public:
  using Record = BpePairTable::Record;
  using Position = uint32_t;  // a slot of BpeWords

  BpeHotPairs(const BpeWords<Id>& words, int threads)
      : words_(words),
        shards_(static_cast<size_t>(std::clamp(threads, 1, 64))),
        max_records_(std::max<size_t>(words.slots() / 128, size_t{1} << 14)),
        max_positions_(std::max<size_t>(words.slots() / 4, size_t{1} << 16)),
        buckets_(std::bit_ceil(std::clamp<size_t>(words.slots() / 8, size_t{1} << 12, size_t{1} << 30)) /
                     shards_.size() +
                 1) {}

  int64_t threshold() const { return threshold_; }
  Record* find(BpePair pair) { return shard_of(pair).table.find(pair); }
  void erase(BpePair pair) { shard_of(pair).table.erase(pair); }
  /// Inserts a new pair, with room for its positions.
  void insert(BpePair pair, int64_t count, uint32_t positions) {
    Shard& shard = shard_of(pair);
    Record& record = shard.table.insert(pair);
    record.count = count;
    record.positions = static_cast<uint32_t>(shard.positions.size());
    record.slots = 0;
    shard.positions.resize(shard.positions.size() + positions);
  }
  void add_position(Record& record, Position position) {
    shard_of(record.pair).positions[record.positions + record.slots++] = position;
  }
  void copy_positions(const Record& record, std::vector<Position>& positions) {
    const auto first = shard_of(record.pair).positions.begin() + static_cast<std::ptrdiff_t>(record.positions);
    positions.assign(first, first + record.slots);
  }

  /// When memory is full, drops the positions that are no longer occupied and, if that is not enough, the less frequent
  /// half of the pairs; this raises the threshold. Returns true if pairs were dropped.
  bool make_room() {
    if (size() <= record_limit_ && positions() <= position_limit_) return false;
    const int64_t before = threshold_;
    if (size() > max_records_) raise_threshold(max_records_ / 2);
    limit_positions();
    for (Shard& shard : shards_) pack_positions(shard);
    set_limits();
    return threshold_ > before;
  }

  /// Counts all pairs and keeps many of the most frequent: at least one, unless none occurs `least` times.
  void refill(const std::vector<uint32_t>& bytes_of_id, int64_t least) {
    const auto for_each_shard = [&](const auto& work) {
      parallel_for(shards_.size(), static_cast<int>(shards_.size()), [&](size_t p) { work(p, shards_[p]); });
    };
    for_each_shard([&](size_t p, Shard& shard) { sketch(p, shard, bytes_of_id); });
    threshold_ = choose_threshold(max_records_ / 2, least);
    while (true) {
      for_each_shard([&](size_t p, Shard& shard) { count_exactly(p, shard, bytes_of_id); });
      if (size() > 0 || threshold_ == least) break;
      threshold_ = std::max(least, threshold_ / 2);  // the counts of buckets that several pairs share were too high
    }
    for_each_shard([&](size_t, Shard& shard) { shard.sums = std::vector<uint32_t>(); });
    if (size() > 0) limit_positions();
    for_each_shard([&](size_t p, Shard& shard) { find_positions(p, shard, bytes_of_id); });
    set_limits();
  }

  template <class Visit>
  void for_each(const Visit& visit) const {
    for (const Shard& shard : shards_) {
      for (const Record& record : shard.table.records()) {
        if (!record.is_free()) visit(record);
      }
    }
  }
  size_t size() const {
    size_t records = 0;
    for (const Shard& shard : shards_) records += shard.table.size();
    return records;
  }

 private:
  /// Pairs are divided by hash, one shard per thread; the result does not depend on the number of shards.
  struct Shard {
    BpePairTable table;
    std::vector<Position> positions;
    std::vector<uint32_t> sums;  // by hash bucket: upper bound of the counts of its pairs, up to UINT32_MAX
  };

  size_t shard_index(uint64_t hash) const { return (hash >> 48) % shards_.size(); }
  Shard& shard_of(BpePair pair) { return shards_[shard_index(hash_of_pair(pair))]; }
  size_t bucket_of(uint64_t hash) const { return (hash >> 16) % buckets_; }

  /// Calls visit(slot, pair, hash, count) for the pairs of one shard.
  template <class Visit>
  void for_each_pair_of(size_t p, const std::vector<uint32_t>& bytes_of_id, const Visit& visit) const {
    words_.for_each_pair(bytes_of_id, [&](size_t slot, Id left, Id right, uint64_t count) {
      const BpePair pair = bpe_pair(left, right);
      const uint64_t hash = hash_of_pair(pair);
      if (shard_index(hash) == p) visit(slot, pair, hash, count);
    });
  }

  void sketch(size_t p, Shard& shard, const std::vector<uint32_t>& bytes_of_id) {
    shard.table.clear();
    shard.positions = std::vector<Position>();
    shard.sums.assign(buckets_, 0);
    for_each_pair_of(p, bytes_of_id, [&](size_t, BpePair, uint64_t hash, uint64_t count) {
      uint32_t& sum = shard.sums[bucket_of(hash)];
      sum = static_cast<uint32_t>(std::min<uint64_t>(sum + count, UINT32_MAX));
    });
  }

  /// Chooses a threshold that about `wanted` buckets reach. Sums are sorted into 16 classes per power of two.
  int64_t choose_threshold(size_t wanted, int64_t least) const {
    const auto class_of = [](uint32_t sum) {
      if (sum < 16) return static_cast<size_t>(sum);
      const int shift = std::bit_width(sum) - 5;
      return static_cast<size_t>(shift) * 16 + (sum >> shift);
    };
    const auto first_of_class = [](size_t c) {
      return c < 32 ? static_cast<int64_t>(c) : static_cast<int64_t>(c % 16 + 16) << (c / 16 - 1);
    };
    std::vector<size_t> sizes(16 * 30);
    for (const Shard& shard : shards_) {
      for (const uint32_t sum : shard.sums) ++sizes[class_of(sum)];
    }
    size_t c = sizes.size() - 1, above = sizes[c];
    while (above < wanted && c > 1) above += sizes[--c];
    return std::max(least, first_of_class(c));
  }

  void count_exactly(size_t p, Shard& shard, const std::vector<uint32_t>& bytes_of_id) {
    shard.table.clear();
    const auto reach = static_cast<uint32_t>(std::min<int64_t>(threshold_, UINT32_MAX));
    for_each_pair_of(p, bytes_of_id, [&](size_t, BpePair pair, uint64_t hash, uint64_t count) {
      if (shard.sums[bucket_of(hash)] < reach) return;
      Record& record = shard.table.insert(pair);
      record.count += static_cast<int64_t>(count);
      ++record.slots;
    });
    shard.table.erase_if([&](const Record& record) { return record.count < threshold_; });
  }

  size_t positions() const {
    size_t positions = 0;
    for (const Shard& shard : shards_) positions += shard.positions.size();
    return positions;
  }
  /// A set of equally frequent pairs cannot be divided: in that case more pairs are kept than planned, and room is made
  /// again only after twice as many have come.
  void set_limits() {
    record_limit_ = std::max(max_records_, 2 * size());
    position_limit_ = std::max(max_positions_ + max_positions_ / 2, 2 * positions());
  }

  void set_threshold(int64_t threshold) {
    threshold_ = threshold;
    for (Shard& shard : shards_) {
      shard.table.erase_if([&](const Record& record) { return record.count < threshold; });
    }
  }

  /// Keeps about `wanted` pairs.
  void raise_threshold(size_t wanted) {
    std::vector<int64_t> counts;
    for_each([&](const Record& record) { counts.push_back(record.count); });
    const auto last = counts.begin() + static_cast<std::ptrdiff_t>(std::min(wanted, counts.size() - 1));
    std::nth_element(counts.begin(), last, counts.end(), std::greater<>());
    const int64_t most = *std::ranges::max_element(counts);
    set_threshold(std::min(*last + 1, most));
  }

  /// Raises the threshold until the positions fit, or until all pairs are equally frequent.
  void limit_positions() {
    std::vector<std::pair<int64_t, size_t>> sizes;
    for_each([&](const Record& record) { sizes.emplace_back(record.count, record.slots); });
    std::ranges::sort(sizes, [](const auto& a, const auto& b) { return a.first > b.first; });
    size_t positions = 0;
    for (const auto& [count, slots] : sizes) {
      positions += slots;
      if (positions > max_positions_ && count < sizes.front().first) return set_threshold(count + 1);
    }
  }

  static void pack_positions(Shard& shard) {
    std::vector<Record*> records;
    shard.table.for_each_used([&](Record& record) { records.push_back(&record); });
    std::ranges::sort(records, [](const Record* a, const Record* b) { return a->positions < b->positions; });
    uint64_t end = 0;
    for (Record* record : records) {
      const auto first = shard.positions.begin() + static_cast<std::ptrdiff_t>(record->positions);
      std::copy(first, first + record->slots, shard.positions.begin() + static_cast<std::ptrdiff_t>(end));
      record->positions = static_cast<uint32_t>(end);
      end += record->slots;
    }
    shard.positions.resize(end);
  }

  void find_positions(size_t p, Shard& shard, const std::vector<uint32_t>& bytes_of_id) {
    uint64_t total = 0;
    shard.table.for_each_used([&](Record& record) {
      record.positions = static_cast<uint32_t>(total);
      total += record.slots;
      record.slots = 0;
    });
    shard.positions.reserve(2 * max_positions_ / shards_.size());  // make_room() leaves the last quarter unused
    shard.positions.resize(total);
    for_each_pair_of(p, bytes_of_id, [&](size_t slot, BpePair pair, uint64_t, uint64_t) {
      Record* record = shard.table.find(pair);
      if (record != nullptr) shard.positions[record->positions + record->slots++] = static_cast<Position>(slot);
    });
  }

  const BpeWords<Id>& words_;
  std::vector<Shard> shards_;
  size_t max_records_;
  size_t max_positions_;
  size_t record_limit_ = 0;
  size_t position_limit_ = 0;
  size_t buckets_;  // per shard
  int64_t threshold_ = 0;
};

}  // namespace llmtrain
