#include <fmt/format.h>

#include <array>

#include "text/pipeline/byte_level.hpp"
#include "text/pipeline/merge_table.hpp"
#include "text/pipeline/token_model.hpp"
#include "text/pipeline/word_cache.hpp"
#include "text/unicode/characters.hpp"

namespace llmtrain {
namespace {

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
