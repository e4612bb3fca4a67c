#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "text/pipeline/token_model.hpp"
#include "text/pipeline/token_trie.hpp"
#include "text/tokenizer.hpp"
#include "text/unicode/characters.hpp"

namespace llmtrain {
namespace {

constexpr double unk_penalty = 10.0;

/// Finds the most probable segmentation (Viterbi), with scores in double as in the tokenizers library. Characters
/// without a token can be unknown; adjacent unknown characters are one token.
class UnigramModel final : public TokenModel {
 public:
  UnigramModel(Vocabulary vocabulary, std::vector<double> scores, int32_t unk_id, bool byte_fallback)
      : vocabulary_(std::move(vocabulary)), scores_(std::move(scores)), unk_(unk_id) {
    double lowest = std::numeric_limits<double>::infinity();
    for (size_t id = 0; id < scores_.size(); ++id) {
      lowest = std::min(lowest, scores_[id]);
      const std::string_view token = vocabulary_.token(static_cast<int32_t>(id));
      if (!token.empty()) trie_.add(token, static_cast<int32_t>(id));
    }
    unk_score_ = lowest - unk_penalty;
    has_bytes_ = byte_fallback;
    for (size_t b = 0; b < 256; ++b) bytes_[b] = vocabulary_.find(fmt::format("<0x{:02X}>", b));
  }

  std::string kind() const override { return "unigram"; }
  const Vocabulary& vocabulary() const override { return vocabulary_; }

  void tokenize(std::string_view word, TokenSink sink) const override {
    thread_local std::vector<Best> best;
    find_best(word, best);
    thread_local std::vector<TextRange> path;
    path.clear();
    bool joins = false;  // the following characters are unknown
    for (size_t end = word.size(); end > 0; end = best[end].begin) {
      const bool unknown = best[end].id == unk_;
      if (unknown && joins) {
        path.back().begin = best[end].begin;
      } else {
        path.push_back({best[end].begin, end});
      }
      joins = unknown;
    }
    for (auto range = path.rbegin(); range != path.rend(); ++range) put(word, *range, sink);
  }

 private:
  struct Best {
    double score;
    size_t begin;
    int32_t id;
  };
  static constexpr size_t unreached = SIZE_MAX;

  void find_best(std::string_view word, std::vector<Best>& best) const {
    best.assign(word.size() + 1, {0, unreached, 0});
    for (size_t begin = 0; begin < word.size();) {
      const double so_far = best[begin].score;
      const size_t length = character_at(word, begin).length;
      const auto offer = [&](size_t n, int32_t id, double score) {
        Best& there = best[begin + n];
        const double candidate = score + so_far;
        if (there.begin == unreached || candidate > there.score) there = {candidate, begin, id};
      };
      bool single = false;
      trie_.prefixes(word.substr(begin), [&](size_t n, int32_t id) {
        offer(n, id, scores_[static_cast<size_t>(id)]);
        single = single || n == length;
      });
      if (!single) {
        if (unk_ < 0) throw EncodeError(begin, "the tokenizer has no token for a character");
        offer(length, unk_, unk_score_);
      }
      begin += length;
    }
  }

  void put(std::string_view word, const TextRange& range, TokenSink& sink) const {
    const std::string_view text = word.substr(range.begin, range.end - range.begin);
    const int32_t id = vocabulary_.find(text);
    const auto known = [&](char c) { return bytes_[static_cast<uint8_t>(c)] >= 0; };
    if (id >= 0) {
      sink.add(id, range.begin, range.end);
    } else if (has_bytes_ && std::ranges::all_of(text, known)) {
      for (const char c : text) sink.add(bytes_[static_cast<uint8_t>(c)], range.begin, range.end);
    } else {
      sink.add(unk_, range.begin, range.end);
    }
  }

  Vocabulary vocabulary_;
  std::vector<double> scores_;  // by id
  int32_t unk_;
  double unk_score_ = 0;
  TokenTrie trie_;
  bool has_bytes_ = false;
  std::array<int32_t, 256> bytes_{};
};

}  // namespace

std::unique_ptr<TokenModel> make_unigram_model(Vocabulary vocabulary, std::vector<double> scores, int32_t unk_id,
                                               bool byte_fallback) {
  return std::make_unique<UnigramModel>(std::move(vocabulary), std::move(scores), unk_id, byte_fallback);
}

}  // namespace llmtrain
