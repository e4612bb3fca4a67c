#include "text/bpe_training/bpe_train.hpp"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <bit>
#include <set>

#include "core/error.hpp"
#include "core/utf8.hpp"
#include "text/bpe_training/bpe_hot_pairs.hpp"
#include "text/bpe_training/bpe_words.hpp"
#include "text/pipeline/byte_level.hpp"

namespace llmtrain {
namespace {

constexpr int32_t no_id = -1;
constexpr size_t ahead = 8;  // number of positions to prefetch ahead

/// List of tokens in printable form, with the id of each.
class TokenList {
 public:
  explicit TokenList(size_t expected) : slots_(std::bit_ceil(expected + expected / 2), no_id) {
    texts_.reserve(expected);
  }

  size_t size() const { return texts_.size(); }
  std::string_view operator[](size_t id) const { return texts_[id]; }
  int32_t find(std::string_view token) const { return slots_[slot_of(token)]; }
  int32_t add(std::string_view token) {
    const auto id = static_cast<int32_t>(texts_.size());
    slots_[slot_of(token)] = id;
    texts_.add(token);
    return id;
  }
  TokenTexts take() { return std::move(texts_); }

 private:
  size_t slot_of(std::string_view token) const {
    size_t slot = WordCounts::hash_of(token) & (slots_.size() - 1);
    while (slots_[slot] != no_id && texts_[static_cast<size_t>(slots_[slot])] != token) {
      slot = (slot + 1) & (slots_.size() - 1);
    }
    return slot;
  }

  std::vector<int32_t> slots_;
  TokenTexts texts_;
};

struct Alphabet {
  TokenList tokens;
  std::vector<int32_t> id_of_byte;
};

[[noreturn]] void refuse(const std::string& what) { throw UserError(ExitCode::command_line, what); }

}  // namespace

void check_bpe_options(const BpeTrainingOptions& options) {
  std::set<std::string> seen;
  for (const std::string& token : options.special_tokens) {
    if (token.empty()) refuse("a special token is empty");
    if (find_invalid_utf8(token) != std::string::npos) refuse("a special token is not UTF-8");
    if (!seen.insert(token).second) refuse(fmt::format("the special token {} is repeated", token));
  }
  const auto least = static_cast<int64_t>(256 + seen.size());
  if (options.vocabulary_size < least || options.vocabulary_size > max_bpe_tokens) {
    refuse(
        fmt::format("a vocabulary of {} tokens is not possible; set --vocab-size (data.vocab_size) to at least {} (256 "
                    "bytes and the special "
                    "tokens) and at most {}",
                    options.vocabulary_size, least, max_bpe_tokens));
  }
}

namespace {

Alphabet make_alphabet(const BpeTrainingOptions& options) {
  check_bpe_options(options);
  Alphabet alphabet{TokenList(static_cast<size_t>(options.vocabulary_size)), std::vector<int32_t>(256)};
  for (const std::string& token : options.special_tokens) alphabet.tokens.add(token);
  for (const uint8_t byte : byte_level_order()) {
    const std::string token = to_byte_level(std::string(1, static_cast<char>(byte)));
    const int32_t known = alphabet.tokens.find(token);
    alphabet.id_of_byte[byte] = known != no_id ? known : alphabet.tokens.add(token);
  }
  return alphabet;
}

template <class Id>
class Trainer {
 public:
  Trainer(WordCounts& counts, const BpeTrainingOptions& options, Alphabet alphabet)
      : options_(options),
        tokens_(std::move(alphabet.tokens)),
        words_(counts, alphabet.id_of_byte),
        hot_((release_free_memory(), words_), options.threads) {
    bytes_.reserve(static_cast<size_t>(options.vocabulary_size));
    merges_.reserve(static_cast<size_t>(options.vocabulary_size));
    for (size_t id = 0; id < tokens_.size(); ++id) remember_bytes(id);
  }

  BpeVocabulary run() {
    const size_t first = tokens_.size(), last = static_cast<size_t>(options_.vocabulary_size);
    refill();
    while (tokens_.size() < last) {
      if (heap_.empty()) refill();
      if (heap_.empty()) break;
      const Candidate best = pop();
      const auto* record = hot_.find(best.pair);
      if (record == nullptr) continue;
      if (record->count == best.count) {
        merge_everywhere(*record);
        if (hot_.make_room()) fill_heap();
        if (options_.progress) {
          options_.progress(static_cast<double>(tokens_.size() - first) / static_cast<double>(last - first));
        }
      } else if (record->count >= hot_.threshold()) {
        push({record->count, best.pair});
      } else {
        hot_.erase(best.pair);
      }
    }
    forget_repeated_merges();
    return {options_.special_tokens, tokens_.take(), std::move(merges_)};
  }

 private:
  using HotPairs = BpeHotPairs<Id>;

  static void release_free_memory() {
#ifdef __GLIBC__
    malloc_trim(0);  // otherwise the allocator keeps the memory that the words used on other threads
#endif
  }
  struct Candidate {
    int64_t count;  // upper bound
    BpePair pair;
  };
  /// Pair that contains the new token.
  struct NewPosition {
    uint32_t left;
    uint32_t right;
    uint32_t slot;
  };

  bool is_before(const Candidate& a, const Candidate& b) const {
    if (a.count != b.count) return a.count > b.count;
    if (options_.ties == BpeTrainingOptions::Ties::ids) return a.pair < b.pair;
    const std::string &left = strings_[left_of(a.pair)], &other_left = strings_[left_of(b.pair)];
    if (left != other_left) return left > other_left;
    return strings_[right_of(a.pair)] > strings_[right_of(b.pair)];
  }
  auto worse() const {
    return [this](const Candidate& a, const Candidate& b) { return is_before(b, a); };
  }
  void push(const Candidate& candidate) {
    heap_.push_back(candidate);
    std::push_heap(heap_.begin(), heap_.end(), worse());
  }
  Candidate pop() {
    std::pop_heap(heap_.begin(), heap_.end(), worse());
    const Candidate best = heap_.back();
    heap_.pop_back();
    return best;
  }

  void refill() {
    hot_.refill(bytes_, std::max<int64_t>(1, options_.min_frequency));
    fill_heap();
  }
  void fill_heap() {
    heap_.clear();
    hot_.for_each([&](const BpePairTable::Record& record) { heap_.push_back({record.count, record.pair}); });
    std::make_heap(heap_.begin(), heap_.end(), worse());
  }

  void remember_bytes(size_t id) {
    std::string bytes;
    from_byte_level(tokens_[id], bytes);  // a special token never occurs in a word, unless it reads like a byte
    bytes_.push_back(static_cast<uint32_t>(bytes.size()));
    if (options_.ties == BpeTrainingOptions::Ties::bytes) strings_.push_back(bytes);
  }

  void merge_everywhere(const BpePairTable::Record& record) {
    const uint32_t left = left_of(record.pair), right = right_of(record.pair);
    hot_.copy_positions(record, places_);
    hot_.erase(record.pair);
    const std::string token = std::string(tokens_[left]).append(tokens_[right]);
    const int32_t known = tokens_.find(token);
    const int32_t id = known != no_id ? known : tokens_.add(token);
    if (known == no_id) remember_bytes(static_cast<size_t>(id));
    merges_.emplace_back(static_cast<int32_t>(left), static_cast<int32_t>(right));
    new_pairs_.clear();
    new_positions_.clear();
    for (size_t i = 0; i < places_.size(); ++i) {
      if (i + ahead < places_.size()) words_.prefetch(places_[i + ahead]);
      merge_at(places_[i], left, right, static_cast<uint32_t>(id));
    }
    if (known == no_id) {
      keep_new_pairs();
    } else {
      repeated_ = true;
      refill();  // the token had pairs before: count them again
    }
  }

  void merge_at(uint32_t slot, uint32_t left, uint32_t right, uint32_t id) {
    const size_t middle = slot + bytes_[left], end = middle + bytes_[right];
    if (words_.at(slot) != left || words_.at(middle) != right) return;  // another merge has replaced it
    const auto count = static_cast<int64_t>(words_.count_at(slot));
    const Id previous = words_.at(slot - 1), next = words_.at(end);
    if (previous != BpeWords<Id>::border) {
      if (previous == id) {  // created by this merge, when `left` was after it
        new_pairs_.insert(bpe_pair(id, left)).count -= count;
      } else {
        lower(bpe_pair(previous, left), count);
      }
      add(bpe_pair(previous, id), static_cast<uint32_t>(slot - bytes_[previous]), count);
    }
    if (next != BpeWords<Id>::border) {
      lower(bpe_pair(right, next), count);
      add(bpe_pair(id, next), slot, count);
    }
    words_.merge(slot, bytes_[left], bytes_[right], static_cast<Id>(id));
  }

  void add(BpePair pair, uint32_t slot, int64_t count) {
    BpePairTable::Record& record = new_pairs_.insert(pair);
    record.count += count;
    ++record.slots;
    new_positions_.push_back({left_of(pair), right_of(pair), slot});
  }

  void lower(BpePair pair, int64_t count) {
    if (auto* record = hot_.find(pair)) record->count -= count;
  }

  /// Pairs that did not exist before.
  void keep_new_pairs() {
    new_pairs_.for_each_used([&](const BpePairTable::Record& record) {
      if (record.count < hot_.threshold()) return;
      hot_.insert(record.pair, record.count, record.slots);
      push({record.count, record.pair});
    });
    for (const NewPosition& position : new_positions_) {
      if (auto* record = hot_.find(bpe_pair(position.left, position.right))) hot_.add_position(*record, position.slot);
    }
  }

  /// A pair that was merged twice counts at its last merge, as in the tokenizers package.
  void forget_repeated_merges() {
    if (!repeated_) return;
    std::set<std::pair<int32_t, int32_t>> seen;
    std::vector<std::pair<int32_t, int32_t>> kept;
    for (auto merge = merges_.rbegin(); merge != merges_.rend(); ++merge) {
      if (seen.insert(*merge).second) kept.push_back(*merge);
    }
    merges_.assign(kept.rbegin(), kept.rend());
  }

  const BpeTrainingOptions& options_;
  TokenList tokens_;
  BpeWords<Id> words_;
  HotPairs hot_;
  std::vector<uint32_t> bytes_;       // length of each token
  std::vector<std::string> strings_;  // bytes of each token, if ties need them
  std::vector<Candidate> heap_;
  std::vector<std::pair<int32_t, int32_t>> merges_;
  bool repeated_ = false;
  // State of the current merge:
  std::vector<uint32_t> places_;
  BpePairTable new_pairs_;
  std::vector<NewPosition> new_positions_;
};

}  // namespace

BpeVocabulary train_bpe(WordCounts& words, const BpeTrainingOptions& options) {
  Alphabet alphabet = make_alphabet(options);
  if (options.vocabulary_size < BpeWords<uint16_t>::interior) {
    return Trainer<uint16_t>(words, options, std::move(alphabet)).run();
  }
  return Trainer<uint32_t>(words, options, std::move(alphabet)).run();
}

}  // namespace llmtrain
