#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "core/error.hpp"
#include "text/pipeline/byte_level.hpp"
#include "text/pipeline/token_model.hpp"
#include "text/pipeline/word_cache.hpp"
#include "text/unicode/characters.hpp"

namespace llmtrain {
namespace {

// Merges of byte pair encoding and the algorithm that applies them.

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

constexpr size_t short_piece = 48;  // symbols

void merge_short(const MergeTable& table, std::vector<BpeSymbol>& symbols) {
  MergeTable::Merge merges[short_piece];  // merge of symbol i with the next
  size_t n = symbols.size();
  for (size_t i = 0; i + 1 < n; ++i) merges[i] = table.find(symbols[i].id, symbols[i + 1].id);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == MergeTable::no_rank) break;
    symbols[best] = {merges[best].id, symbols[best].length + symbols[best + 1].length};
    std::copy(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 2, symbols.begin() + static_cast<std::ptrdiff_t>(n),
              symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    --n;
    if (best + 1 < n) std::copy(merges + best + 2, merges + n, merges + best + 1);
    if (best + 1 < n) merges[best] = table.find(symbols[best].id, symbols[best + 1].id);
    if (best > 0) merges[best - 1] = table.find(symbols[best - 1].id, symbols[best].id);
  }
  symbols.resize(n);
}

struct Candidate {
  uint32_t rank;
  uint32_t place;
  int32_t id;
  bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : place > other.place; }
};

void merge_long(const MergeTable& table, std::vector<BpeSymbol>& symbols) {
  LLMTRAIN_CHECK(symbols.size() < UINT32_MAX, "a word has less than 2^32 symbols");
  constexpr uint32_t none = UINT32_MAX;
  const auto n = static_cast<uint32_t>(symbols.size());
  std::vector<uint32_t> before(n), after(n);
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap;
  const auto offer = [&](uint32_t left, uint32_t right) {
    const MergeTable::Merge merge = table.find(symbols[left].id, symbols[right].id);
    if (merge.rank != MergeTable::no_rank) heap.push({merge.rank, left, merge.id});
  };
  for (uint32_t i = 0; i < n; ++i) {
    before[i] = i == 0 ? none : i - 1;
    after[i] = i + 1 == n ? none : i + 1;
    if (i + 1 < n) offer(i, i + 1);
  }
  while (!heap.empty()) {
    const Candidate top = heap.top();
    heap.pop();
    const uint32_t left = top.place;
    if (symbols[left].length == 0 || after[left] == none) continue;
    const uint32_t right = after[left];
    const MergeTable::Merge merge = table.find(symbols[left].id, symbols[right].id);
    if (merge.rank != top.rank || merge.id != top.id) continue;  // the pair has changed in the meantime
    symbols[left] = {merge.id, symbols[left].length + symbols[right].length};
    symbols[right].length = 0;
    after[left] = after[right];
    if (after[right] != none) before[after[right]] = left;
    if (before[left] != none) offer(before[left], left);
    if (after[left] != none) offer(left, after[left]);
  }
  std::erase_if(symbols, [](const BpeSymbol& symbol) { return symbol.length == 0; });
}

MergeTable::MergeTable(size_t expected) {
  const size_t size = std::bit_ceil(std::max<size_t>(16, expected * 2));
  slots_.assign(size, {empty, {no_rank, -1}});
  mask_ = size - 1;
  shift_ = 64 - std::countr_zero(size);
}

void MergeTable::set(int32_t left, int32_t right, const Merge& merge) {
  const uint64_t key = key_of(left, right);
  size_t slot = slot_of(key);
  for (size_t tries = 0; slots_[slot].key != key && slots_[slot].key != empty; ++tries) {
    LLMTRAIN_CHECK(tries < slots_.size() / 2, "a table of merges was made too small");
    slot = (slot + 1) & mask_;
  }
  slots_[slot] = {key, merge};
}

/// Merges in place the pair of the lowest rank, the leftmost of equal ones, until no pair is left. Short words by
/// looking at every pair, long ones through a heap: n log n.
void apply_merges(const MergeTable& table, std::vector<BpeSymbol>& symbols) {
  if (symbols.size() <= short_piece) {
    merge_short(table, symbols);
  } else {
    merge_long(table, symbols);
  }
}

int32_t byte_token(const Vocabulary& vocabulary, uint8_t byte) {
  return vocabulary.find(fmt::format("<0x{:02X}>", byte));
}

int32_t byte_level_token(const Vocabulary& vocabulary, uint8_t byte) {
  return vocabulary.find(to_byte_level(std::string_view(reinterpret_cast<const char*>(&byte), 1)));
}

/// Returns true if U+2581 follows another character.
bool joins_words(std::string_view token) {
  bool other = false;
  for (size_t i = 0; i < token.size();) {
    const bool space = token.substr(i).starts_with(space_symbol);
    if (space && other) return true;
    other = other || !space;
    i += space ? space_symbol.size() : 1;
  }
  return false;
}

class BpeModel final : public TokenModel {
 public:
  BpeModel(Vocabulary vocabulary, const std::vector<MergeRule>& merges, const BpeOptions& options, bool bytes)
      : vocabulary_(std::move(vocabulary)), options_(options), bytes_(bytes), merges_(merges.size()) {
    unk_ = options_.unk_token.empty() ? -1 : vocabulary_.find(options_.unk_token);
    separate_ = !bytes && !options_.ignore_merges && options_.prefix.empty() && options_.suffix.empty() &&
                vocabulary_.find(space_symbol) >= 0;
    for (const MergeRule& rule : merges) {
      merges_.set(rule.left, rule.right, {rule.rank, rule.merged});
      separate_ = separate_ && !joins_words(vocabulary_.token(rule.merged));
    }
    for (size_t b = 0; b < 256; ++b) {
      const auto byte = static_cast<uint8_t>(b);
      first_[b] = bytes ? byte_level_token(vocabulary_, byte) : byte_token(vocabulary_, byte);
      all_bytes_ = all_bytes_ && first_[b] >= 0;
    }
    if (bytes && options_.ignore_merges) collect_whole_tokens();
    separate_ = separate_ && (!options_.byte_fallback || all_bytes_);
  }

  std::string kind() const override { return "bpe"; }
  const Vocabulary& vocabulary() const override { return vocabulary_; }
  bool takes_bytes() const override { return bytes_; }
  bool words_are_separate() const override { return separate_; }

  void tokenize(std::string_view piece, TokenSink sink) const override {
    if (!separate_) {
      word(piece, 0, sink);
      return;
    }
    for (size_t begin = 0; begin < piece.size();) {
      const size_t end = word_end(piece, begin);
      word(piece.substr(begin, end - begin), begin, sink);
      begin = end;
    }
  }

 private:
  void collect_whole_tokens() {
    for (int32_t id = 0; id < vocabulary_.id_limit(); ++id) {
      std::string raw;
      if (vocabulary_.has(id) && from_byte_level(vocabulary_.token(id), raw)) whole_.add(raw, id);
    }
  }

  static size_t word_end(std::string_view piece, size_t begin) {
    size_t end = begin;
    while (piece.substr(end).starts_with(space_symbol)) end += space_symbol.size();
    return std::min(piece.find(space_symbol, end), piece.size());
  }

  void word(std::string_view text, size_t at, TokenSink& sink) const {
    if (sink.ranges != nullptr || text.size() > WordCache::longest_key) {
      merge(text, at, sink);
      return;
    }
    WordCache& cache = WordCache::of_thread(owner_);
    const uint64_t hash = hash_of(text);
    if (cache.get(text, hash, sink.ids)) return;
    const size_t before = sink.ids.size();
    merge(text, at, sink);
    cache.put(text, hash, sink.ids.data() + before, sink.ids.size() - before);
  }

  void merge(std::string_view text, size_t at, TokenSink& sink) const {
    if (options_.ignore_merges) {
      const int32_t whole = (bytes_ ? whole_ : vocabulary_).find(text);
      if (whole >= 0) {
        sink.add(whole, at, at + text.size());
        return;
      }
    }
    thread_local std::vector<BpeSymbol> symbols;
    symbols.clear();
    if (bytes_) {
      for (const char c : text) symbols.push_back({first_[static_cast<uint8_t>(c)], 1});
    } else {
      split(text, symbols);
    }
    apply_merges(merges_, symbols);
    for (const BpeSymbol& symbol : symbols) {
      sink.add(symbol.id, at, at + symbol.length);
      at += symbol.length;
    }
  }

  /// Processes characters like the library: an unknown character waits to be joined with others and is emitted before
  /// the next known one, but after bytes that represent an unknown one.
  void split(std::string_view text, std::vector<BpeSymbol>& symbols) const {
    uint32_t waiting = 0;  // bytes
    std::string key;
    for (size_t i = 0; i < text.size();) {
      const size_t length = character_at(text, i).length;
      const bool last = i + length == text.size();
      std::string_view character = text.substr(i, length);
      if ((i > 0 && !options_.prefix.empty()) || (last && !options_.suffix.empty())) {
        key = i > 0 ? options_.prefix : std::string();
        key.append(character).append(last ? options_.suffix : std::string());
        character = key;
      }
      i += length;
      const int32_t id = vocabulary_.find(character);
      if (id >= 0) {
        if (waiting > 0) symbols.push_back({unk_, waiting});
        waiting = 0;
        symbols.push_back({id, static_cast<uint32_t>(length)});
      } else if (options_.byte_fallback && as_bytes(character, symbols)) {
        continue;
      } else if (unk_ >= 0) {
        if (waiting > 0 && !options_.fuse_unk) {
          symbols.push_back({unk_, waiting});
          waiting = 0;
        }
        waiting += static_cast<uint32_t>(length);
      }
    }
    if (waiting > 0) symbols.push_back({unk_, waiting});
  }

  bool as_bytes(std::string_view character, std::vector<BpeSymbol>& symbols) const {
    for (const char c : character) {
      if (first_[static_cast<uint8_t>(c)] < 0) return false;
    }
    for (const char c : character) symbols.push_back({first_[static_cast<uint8_t>(c)], 1});
    return true;
  }

  Vocabulary vocabulary_;
  Vocabulary whole_;  // tokens as bytes, for ignore_merges
  BpeOptions options_;
  bool bytes_;
  MergeTable merges_;
  std::array<int32_t, 256> first_{};  // token of each byte, -1 = none
  bool all_bytes_ = true;
  bool separate_ = false;
  int32_t unk_ = -1;
  uint64_t owner_ = WordCache::new_owner();
};

}  // namespace

bool can_take_bytes(const Vocabulary& vocabulary, const BpeOptions& options) {
  if (!options.prefix.empty() || !options.suffix.empty()) return false;
  for (size_t byte = 0; byte < 256; ++byte) {
    if (byte_level_token(vocabulary, static_cast<uint8_t>(byte)) < 0) return false;
  }
  return true;
}

std::unique_ptr<TokenModel> make_bpe_model(Vocabulary vocabulary, const std::vector<MergeRule>& merges,
                                           const BpeOptions& options, bool bytes) {
  return std::make_unique<BpeModel>(std::move(vocabulary), merges, options, bytes);
}

}  // namespace llmtrain
