#pragma once
// BPE training keeps only the frequent pairs of adjacent tokens and their positions: every pair that occurs at least
// threshold() times. When these are used up, all pairs are counted again and the threshold is lowered. Memory is thus a
// fraction of that of the words; a list of all pairs' positions would take several times as much.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "core/parallel_for.hpp"
#include "text/bpe_training/bpe_pairs.hpp"
#include "text/bpe_training/bpe_words.hpp"

namespace llmtrain {

template <class Id>
class BpeHotPairs {
 public:
  using Record = BpePairTable::Record;
  using Place = uint32_t;  // a slot of BpeWords

  BpeHotPairs(const BpeWords<Id>& words, int threads)
      : words_(words),
        parts_(static_cast<size_t>(std::clamp(threads, 1, 64))),
        max_records_(std::max<size_t>(words.slots() / 128, size_t{1} << 14)),
        max_places_(std::max<size_t>(words.slots() / 4, size_t{1} << 16)),
        buckets_(std::bit_ceil(std::clamp<size_t>(words.slots() / 8, size_t{1} << 12, size_t{1} << 30)) /
                     parts_.size() +
                 1) {}

  int64_t threshold() const { return threshold_; }
  Record* find(BpePair pair) { return part_of(pair).table.find(pair); }
  void erase(BpePair pair) { part_of(pair).table.erase(pair); }
  /// Inserts a new pair, with room for its positions.
  void insert(BpePair pair, int64_t count, uint32_t places) {
    Part& part = part_of(pair);
    Record& record = part.table.insert(pair);
    record.count = count;
    record.places = static_cast<uint32_t>(part.places.size());
    record.slots = 0;
    part.places.resize(part.places.size() + places);
  }
  void add_place(Record& record, Place place) { part_of(record.pair).places[record.places + record.slots++] = place; }
  void copy_places(const Record& record, std::vector<Place>& places) {
    const auto first = part_of(record.pair).places.begin() + static_cast<std::ptrdiff_t>(record.places);
    places.assign(first, first + record.slots);
  }

  /// When memory is full, drops the positions that are no longer occupied and, if that is not enough, the less frequent
  /// half of the pairs; this raises the threshold. Returns true if pairs were dropped.
  bool make_room() {
    if (size() <= record_limit_ && places() <= place_limit_) return false;
    const int64_t before = threshold_;
    if (size() > max_records_) raise_threshold(max_records_ / 2);
    limit_places();
    for (Part& part : parts_) pack_places(part);
    set_limits();
    return threshold_ > before;
  }

  /// Counts all pairs and keeps many of the most frequent: at least one, unless none occurs `least` times.
  void refill(const std::vector<uint32_t>& bytes_of_id, int64_t least) {
    const auto each_part = [&](const auto& work) {
      parallel_for(parts_.size(), static_cast<int>(parts_.size()), [&](size_t p) { work(p, parts_[p]); });
    };
    each_part([&](size_t p, Part& part) { sketch(p, part, bytes_of_id); });
    threshold_ = choose_threshold(max_records_ / 2, least);
    while (true) {
      each_part([&](size_t p, Part& part) { count_exactly(p, part, bytes_of_id); });
      if (size() > 0 || threshold_ == least) break;
      threshold_ = std::max(least, threshold_ / 2);  // the counts of buckets that several pairs share were too high
    }
    each_part([&](size_t, Part& part) { part.sums = std::vector<uint32_t>(); });
    if (size() > 0) limit_places();
    each_part([&](size_t p, Part& part) { find_places(p, part, bytes_of_id); });
    set_limits();
  }

  template <class Visit>
  void for_each(const Visit& visit) const {
    for (const Part& part : parts_) {
      for (const Record& record : part.table.records()) {
        if (!record.is_free()) visit(record);
      }
    }
  }
  size_t size() const {
    size_t records = 0;
    for (const Part& part : parts_) records += part.table.size();
    return records;
  }

 private:
  /// Pairs are divided by hash, one shard per thread; the result does not depend on the number of shards.
  struct Part {
    BpePairTable table;
    std::vector<Place> places;
    std::vector<uint32_t> sums;  // by hash bucket: upper bound of the counts of its pairs, up to UINT32_MAX
  };

  size_t part_index(uint64_t hash) const { return (hash >> 48) % parts_.size(); }
  Part& part_of(BpePair pair) { return parts_[part_index(hash_of_pair(pair))]; }
  size_t bucket_of(uint64_t hash) const { return (hash >> 16) % buckets_; }

  /// Calls visit(slot, pair, hash, count) for the pairs of one shard.
  template <class Visit>
  void for_each_pair_of(size_t p, const std::vector<uint32_t>& bytes_of_id, const Visit& visit) const {
    words_.for_each_pair(bytes_of_id, [&](size_t slot, Id left, Id right, uint64_t count) {
      const BpePair pair = bpe_pair(left, right);
      const uint64_t hash = hash_of_pair(pair);
      if (part_index(hash) == p) visit(slot, pair, hash, count);
    });
  }

  void sketch(size_t p, Part& part, const std::vector<uint32_t>& bytes_of_id) {
    part.table.clear();
    part.places = std::vector<Place>();
    part.sums.assign(buckets_, 0);
    for_each_pair_of(p, bytes_of_id, [&](size_t, BpePair, uint64_t hash, uint64_t count) {
      uint32_t& sum = part.sums[bucket_of(hash)];
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
    for (const Part& part : parts_) {
      for (const uint32_t sum : part.sums) ++sizes[class_of(sum)];
    }
    size_t c = sizes.size() - 1, above = sizes[c];
    while (above < wanted && c > 1) above += sizes[--c];
    return std::max(least, first_of_class(c));
  }

  void count_exactly(size_t p, Part& part, const std::vector<uint32_t>& bytes_of_id) {
    part.table.clear();
    const auto reach = static_cast<uint32_t>(std::min<int64_t>(threshold_, UINT32_MAX));
    for_each_pair_of(p, bytes_of_id, [&](size_t, BpePair pair, uint64_t hash, uint64_t count) {
      if (part.sums[bucket_of(hash)] < reach) return;
      Record& record = part.table.insert(pair);
      record.count += static_cast<int64_t>(count);
      ++record.slots;
    });
    part.table.erase_if([&](const Record& record) { return record.count < threshold_; });
  }

  size_t places() const {
    size_t places = 0;
    for (const Part& part : parts_) places += part.places.size();
    return places;
  }
  /// A set of equally frequent pairs cannot be divided: in that case more pairs are kept than planned, and room is made
  /// again only after twice as many have come.
  void set_limits() {
    record_limit_ = std::max(max_records_, 2 * size());
    place_limit_ = std::max(max_places_ + max_places_ / 2, 2 * places());
  }

  void set_threshold(int64_t threshold) {
    threshold_ = threshold;
    for (Part& part : parts_) {
      part.table.erase_if([&](const Record& record) { return record.count < threshold; });
    }
  }

  /// Keeps about `wanted` pairs.
  void raise_threshold(size_t wanted) {
    std::vector<int64_t> counts;
    for_each([&](const Record& record) { counts.push_back(record.count); });
    const auto last = counts.begin() + static_cast<std::ptrdiff_t>(std::min(wanted, counts.size() - 1));
    std::nth_element(counts.begin(), last, counts.end(), std::greater<>());
    const int64_t most = *std::max_element(counts.begin(), counts.end());
    set_threshold(std::min(*last + 1, most));
  }

  /// Raises the threshold until the positions fit, or until all pairs are equally frequent.
  void limit_places() {
    std::vector<std::pair<int64_t, size_t>> sizes;
    for_each([&](const Record& record) { sizes.emplace_back(record.count, record.slots); });
    std::sort(sizes.begin(), sizes.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    size_t places = 0;
    for (const auto& [count, slots] : sizes) {
      places += slots;
      if (places > max_places_ && count < sizes.front().first) return set_threshold(count + 1);
    }
  }

  static void pack_places(Part& part) {
    std::vector<Record*> records;
    part.table.for_each_used([&](Record& record) { records.push_back(&record); });
    std::sort(records.begin(), records.end(), [](const Record* a, const Record* b) { return a->places < b->places; });
    uint64_t end = 0;
    for (Record* record : records) {
      const auto first = part.places.begin() + static_cast<std::ptrdiff_t>(record->places);
      std::copy(first, first + record->slots, part.places.begin() + static_cast<std::ptrdiff_t>(end));
      record->places = static_cast<uint32_t>(end);
      end += record->slots;
    }
    part.places.resize(end);
  }

  void find_places(size_t p, Part& part, const std::vector<uint32_t>& bytes_of_id) {
    uint64_t total = 0;
    part.table.for_each_used([&](Record& record) {
      record.places = static_cast<uint32_t>(total);
      total += record.slots;
      record.slots = 0;
    });
    part.places.reserve(2 * max_places_ / parts_.size());  // make_room() leaves the last quarter unused
    part.places.resize(total);
    for_each_pair_of(p, bytes_of_id, [&](size_t slot, BpePair pair, uint64_t, uint64_t) {
      Record* record = part.table.find(pair);
      if (record != nullptr) part.places[record->places + record->slots++] = static_cast<Place>(slot);
    });
  }

  const BpeWords<Id>& words_;
  std::vector<Part> parts_;
  size_t max_records_;
  size_t max_places_;
  size_t record_limit_ = 0;
  size_t place_limit_ = 0;
  size_t buckets_;  // per shard
  int64_t threshold_ = 0;
};

}  // namespace llmtrain
