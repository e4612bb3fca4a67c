#include "text/sentencepiece/sentencepiece_segment.hpp"

#include <algorithm>
#include <cfloat>
#include <queue>
#include <unordered_map>
#include <utility>

#include "core/error.hpp"
#include "text/pipeline/token_decoder.hpp"
#include "text/pipeline/token_trie.hpp"
#include "text/unicode/characters.hpp"

namespace llmtrain {
namespace {

using Type = SentencePieceModel::Type;

bool is_text(Type type) { return type == Type::normal || type == Type::user_defined || type == Type::unused; }

class PieceMerger final : public PieceSegmenter {
 public:
  PieceMerger(const SentencePieceModel& model, const PieceTable& table) : model_(model), table_(table) {
    for (size_t id = 0; id < model.pieces.size(); ++id) {
      if (model.pieces[id].type != Type::user_defined) continue;
      user_defined_.add(model.pieces[id].text, static_cast<int32_t>(id));
    }
    user_defined_.finish();
  }

  void segment(std::string_view text, std::vector<PieceRange>& pieces) const override {
    Merging merging{*this, text, {}, {}, {}};
    merging.split();
    merging.merge();
    merging.write(pieces);
  }
  bool works_on_words() const override { return true; }

 private:
  struct Symbol {
    size_t begin, length;  // length 0: merged into another symbol
    int64_t before, after;
    bool frozen;  // a user-defined piece: never merged
  };
  struct Candidate {
    float score;
    int64_t left, right;
    size_t length;
    bool operator<(const Candidate& other) const {
      return score != other.score ? score < other.score : left > other.left;
    }
  };

  /// State of one text.
  struct Merging {
    const PieceMerger& merger;
    std::string_view text;
    std::vector<Symbol> symbols;
    std::priority_queue<Candidate> agenda;
    std::unordered_map<std::string_view, size_t> unused;  // length of the left half of an unused piece

    void split() {
      std::vector<LiteralMatcher::Match> matches;
      if (!merger.user_defined_.empty()) merger.user_defined_.find(text, matches);
      size_t m = 0;
      for (size_t i = 0; i < text.size();) {
        const bool frozen = m < matches.size() && matches[m].begin == i;
        const size_t length = frozen ? matches[m].end - i : character_at(text, i).length;
        if (frozen) ++m;
        const auto index = static_cast<int64_t>(symbols.size());
        i += length;
        symbols.push_back({i - length, length, index - 1, i < text.size() ? index + 1 : -1, frozen});
      }
    }

    void offer(int64_t left, int64_t right) {
      if (left < 0 || right < 0) return;
      const Symbol &a = at(left), &b = at(right);
      const size_t length = a.length + b.length;
      if (a.frozen || b.frozen || length > merger.table_.longest()) return;
      const std::string_view piece = text.substr(a.begin, length);
      const int32_t id = merger.table_.find(piece);
      if (id < 0) return;
      agenda.push({merger.model_.pieces[static_cast<size_t>(id)].score, left, right, length});
      if (merger.model_.has(Type::unused, id)) unused[piece] = a.length;
    }

    void merge() {
      for (size_t i = 1; i < symbols.size(); ++i) offer(static_cast<int64_t>(i) - 1, static_cast<int64_t>(i));
      while (!agenda.empty()) {
        const Candidate top = agenda.top();
        agenda.pop();
        Symbol &left = at(top.left), &right = at(top.right);
        if (left.length == 0 || right.length == 0 || left.length + right.length != top.length) continue;
        left.length = top.length;
        left.after = right.after;
        if (right.after >= 0) at(right.after).before = top.left;
        right.length = 0;
        offer(left.before, top.left);
        offer(top.left, left.after);
      }
    }

    /// Splits unused pieces again.
    void write(std::vector<PieceRange>& pieces) const {
      std::vector<std::pair<size_t, size_t>> open;  // begin and length, the next one last
      for (int64_t i = symbols.empty() ? -1 : 0; i >= 0; i = symbols[static_cast<size_t>(i)].after) {
        const Symbol& symbol = symbols[static_cast<size_t>(i)];
        open.emplace_back(symbol.begin, symbol.length);
        while (!open.empty()) {
          const auto [begin, length] = open.back();
          open.pop_back();
          const std::string_view piece = text.substr(begin, length);
          const int32_t id = merger.table_.id_of(piece);
          const auto parts = merger.model_.has(Type::unused, id) ? unused.find(piece) : unused.end();
          if (parts == unused.end()) {
            pieces.push_back({begin, begin + length, id});
          } else {
            open.emplace_back(begin + parts->second, length - parts->second);
            open.emplace_back(begin, parts->second);
          }
        }
      }
    }

    Symbol& at(int64_t i) { return symbols[static_cast<size_t>(i)]; }
  };

  const SentencePieceModel& model_;
  const PieceTable& table_;
  LiteralMatcher user_defined_;
};

/// Sums of scores are computed and compared in single precision from the beginning of the text, as in the reference:
/// their rounding decides between segmentations that are nearly equal.
class PieceLattice final : public PieceSegmenter {
 public:
  PieceLattice(const SentencePieceModel& model, const PieceTable& table) : unknown_(table.unknown()) {
    float lowest = FLT_MAX, highest = FLT_MIN;
    for (const auto& piece : model.pieces) {
      if (piece.type != Type::normal) continue;
      lowest = std::min(lowest, piece.score);
      highest = std::max(highest, piece.score);
    }
    unknown_score_ = lowest - 10.0f;
    for (size_t id = 0; id < model.pieces.size(); ++id) {
      const auto& piece = model.pieces[id];
      // A user-defined piece always wins.
      const bool user_defined = piece.type == Type::user_defined;
      scores_.push_back(user_defined ? static_cast<float>(static_cast<float>(piece.text.size()) * highest - 0.1)
                                     : piece.score);
      if (piece.type == Type::normal || piece.type == Type::user_defined) {
        trie_.add(piece.text, static_cast<int32_t>(id));
      }
    }
  }

  void segment(std::string_view text, std::vector<PieceRange>& pieces) const override {
    thread_local std::vector<Best> best;
    best.assign(text.size() + 1, {0, -1, unreached});
    for (size_t begin = 0; begin < text.size();) {
      const float so_far = best[begin].score;
      const size_t length = character_at(text, begin).length;
      const auto offer = [&](size_t end, float candidate, int32_t id) {
        Best& there = best[end];
        if (there.begin == unreached || candidate > there.score) there = {candidate, id, begin};
      };
      bool single = false;
      trie_.prefixes(text.substr(begin), [&](size_t n, int32_t id) {
        offer(begin + n, scores_[static_cast<size_t>(id)] + so_far, id);
        single = single || n == length;
      });
      if (!single) offer(begin + length, unknown_score_ + so_far, unknown_);
      begin += length;
    }
    const size_t first = pieces.size();
    for (size_t end = text.size(); end > 0; end = best[end].begin)
      pieces.push_back({best[end].begin, end, best[end].id});
    std::reverse(pieces.begin() + static_cast<std::ptrdiff_t>(first), pieces.end());
  }
  bool works_on_words() const override { return false; }

 private:
  struct Best {
    float score;
    int32_t id;
    size_t begin;
  };
  static constexpr size_t unreached = SIZE_MAX;

  int32_t unknown_;
  float unknown_score_ = 0;
  std::vector<float> scores_;  // by id
  TokenTrie trie_;
};

}  // namespace

PieceTable::PieceTable(const SentencePieceModel& model) {
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const auto& piece = model.pieces[i];
    const auto id = static_cast<int32_t>(i);
    LLMTRAIN_CHECK((is_text(piece.type) ? text_ : names_).add(piece.text, id) == Vocabulary::Added::yes,
                   "a model was not checked");
    if (piece.type == Type::unknown) unknown_ = id;
    if (piece.type == Type::byte) bytes_[static_cast<size_t>(byte_of_token(piece.text))] = id;
    if (!is_text(piece.type)) continue;
    size_t leading = 0;
    while (std::string_view(piece.text).substr(leading).starts_with(space_symbol)) leading += space_symbol.size();
    any_joins_words_ = any_joins_words_ || piece.text.find(space_symbol, leading) != std::string::npos;
  }
}

std::unique_ptr<PieceSegmenter> make_piece_merger(const SentencePieceModel& model, const PieceTable& table) {
  return std::make_unique<PieceMerger>(model, table);
}
std::unique_ptr<PieceSegmenter> make_piece_lattice(const SentencePieceModel& model, const PieceTable& table) {
  return std::make_unique<PieceLattice>(model, table);
}

}  // namespace llmtrain
