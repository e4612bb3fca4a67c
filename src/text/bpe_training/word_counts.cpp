#include "text/bpe_training/word_counts.hpp"

#include <xxhash.h>

#include <algorithm>

#include "core/error.hpp"

namespace llmtrain {
namespace {

constexpr size_t first_slots = 64;
constexpr int shard_bits = 6;

/// Encodes a length in groups of 7 bits, lowest first.
void append_length(std::string& texts, uint64_t length) {
  for (; length >= 128; length >>= 7) texts += static_cast<char>(length | 128);
  texts += static_cast<char>(length);
}

uint64_t take_length(std::string_view texts, size_t& position) {
  uint64_t length = 0;
  for (int shift = 0;; shift += 7) {
    LLMTRAIN_CHECK(position < texts.size() && shift < 63, "list of words ends early");
    const auto byte = static_cast<uint8_t>(texts[position++]);
    length |= uint64_t{byte & 127u} << shift;
    if (byte < 128) return length;
  }
}

}  // namespace

uint64_t WordCounts::hash_of(std::string_view word) { return XXH3_64bits(word.data(), word.size()); }

void WordCounts::add(std::string_view word, uint64_t count) { add(hash_of(word), word, count); }

std::string_view WordCounts::Shard::word(const Entry& entry) const {
  size_t position = entry.position;
  const uint64_t length = take_length(texts, position);
  return std::string_view(texts).substr(position, length);
}

void WordCounts::Shard::grow() {
  slots.assign(std::max(first_slots, slots.size() * 2), 0);
  for (size_t e = 0; e < entries.size(); ++e) {
    size_t slot = hashes[e] & (slots.size() - 1);
    while (slots[slot] != 0) slot = (slot + 1) & (slots.size() - 1);
    slots[slot] = static_cast<uint32_t>(e + 1);
  }
}

void WordCounts::add(uint64_t hash, std::string_view word, uint64_t count) {
  Shard& shard = shards_[hash >> (64 - shard_bits)];
  const auto low = static_cast<uint32_t>(hash);
  const std::lock_guard lock(shard.mutex);
  if (shard.entries.size() * 4 >= shard.slots.size() * 3) shard.grow();
  size_t slot = low & (shard.slots.size() - 1);
  for (; shard.slots[slot] != 0; slot = (slot + 1) & (shard.slots.size() - 1)) {
    const size_t e = shard.slots[slot] - 1;
    if (shard.hashes[e] == low && shard.word(shard.entries[e]) == word) {
      shard.entries[e].count += count;
      return;
    }
  }
  LLMTRAIN_CHECK(shard.entries.size() < UINT32_MAX, "too many distinct words");
  shard.entries.push_back({count, shard.texts.size()});
  shard.hashes.push_back(low);
  shard.slots[slot] = static_cast<uint32_t>(shard.entries.size());
  append_length(shard.texts, word.size());
  shard.texts += word;
}

uint64_t WordCounts::size() const {
  uint64_t words = 0;
  for (const Shard& shard : shards_) words += shard.entries.size();
  return words;
}

uint64_t WordCounts::text_bytes() const {
  uint64_t bytes = 0;
  for_each([&](std::string_view word, uint64_t) { bytes += word.size(); });
  return bytes;
}

uint64_t WordCounts::total() const {
  uint64_t total = 0;
  for (const Shard& shard : shards_) {
    for (const Entry& entry : shard.entries) total += entry.count;
  }
  return total;
}

void WordCounts::for_each(const std::function<void(std::string_view, uint64_t)>& visit) const {
  for (const Shard& shard : shards_) {
    for (const Entry& entry : shard.entries) visit(shard.word(entry), entry.count);
  }
}

void WordCounts::take_each(const std::function<void(std::string_view, uint64_t)>& visit) {
  for (Shard& shard : shards_) {
    for (const Entry& entry : shard.entries) visit(shard.word(entry), entry.count);
    shard.clear();
  }
}

std::string WordCounts::serialized(size_t shard) const {
  std::string bytes;
  for (const Entry& entry : shards_[shard].entries) {
    const std::string_view word = shards_[shard].word(entry);
    append_length(bytes, word.size());
    bytes += word;
    append_length(bytes, entry.count);
  }
  return bytes;
}

void WordCounts::add_serialized(std::string_view bytes) {
  for (size_t position = 0; position < bytes.size();) {
    const uint64_t length = take_length(bytes, position);
    LLMTRAIN_CHECK(length <= bytes.size() - position, "list of words ends early");
    const std::string_view word = bytes.substr(position, length);
    position += length;
    add(word, take_length(bytes, position));
  }
}

void WordCounts::Shard::clear() {
  slots = std::vector<uint32_t>();
  hashes = std::vector<uint32_t>();
  entries = std::vector<Entry>();
  texts = std::string();
}

void WordCounts::clear() {
  for (Shard& shard : shards_) shard.clear();
}

WordCounter::WordCounter(WordCounts& counts) : counts_(counts), slots_(slot_count) {
  entries_.reserve(max_words);
  static_assert(max_words <= UINT16_MAX);
}

void WordCounter::insert(size_t slot, uint64_t hash, std::string_view word) {
  if (entries_.size() == max_words || texts_.size() + word.size() > max_text) {
    flush();
    if (word.size() > max_text / 4) return counts_.add(hash, word, 1);
    slot = hash & (slot_count - 1);
  }
  entries_.push_back({hash, 1, static_cast<uint32_t>(texts_.size()), static_cast<uint32_t>(word.size())});
  slots_[slot] = static_cast<uint16_t>(entries_.size());
  texts_ += word;
}

void WordCounter::flush() {
  for (const Entry& entry : entries_) {
    counts_.add(entry.hash, std::string_view(texts_).substr(entry.position, entry.length), entry.count);
  }
  entries_.clear();
  texts_.clear();
  std::ranges::fill(slots_, uint16_t{0});
}

}  // namespace llmtrain
