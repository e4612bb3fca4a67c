
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "core/error.hpp"
#include "text/pipeline/literal_matcher.hpp"
#include "text/pipeline/pipeline_tokenizer.hpp"
#include "text/pipeline/token_decoder.hpp"
#include "text/pipeline/word_cache.hpp"
#include "text/sentencepiece/sentencepiece_model.hpp"
#include "text/sentencepiece/sentencepiece_segment.hpp"
#include "text/unicode/characters.hpp"

namespace llmtrain {
namespace {

using Type = SentencePieceModel::Type;

bool is_alphanumeric(char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(SentencePieceModel model, TokenizerOrigin origin)
      : model_(std::move(model)),
        origin_(std::move(origin)),
        pieces_(model_),
        normalizer_(model_),
        added_(model_.added, {}) {
    for (const AddedToken& token : added_.tokens()) {
      size_ = std::max(size_, int64_t{token.id} + 1);
      added_by_id_[token.id] = token;
    }
    if (model_.kind == SentencePieceModel::Kind::bpe) {
      segmenter_ = make_piece_merger(model_, pieces_);
    } else {
      segmenter_ = make_piece_lattice(model_, pieces_);
    }
    // Words are segmented separately if no piece crosses from one to the next.
    separate_ = segmenter_->works_on_words() && model_.escape_whitespaces && !model_.whitespace_as_suffix &&
                !pieces_.any_joins_words();
  }

  std::string kind() const override {
    return model_.kind == SentencePieceModel::Kind::bpe ? "sentencepiece bpe" : "sentencepiece unigram";
  }
  int64_t vocabulary_size() const override { return size_; }
  int32_t eos_id() const override { return origin_.eos; }
  int32_t bos_id() const override { return origin_.bos; }
  int32_t pad_id() const override { return origin_.pad; }

  void encode(std::string_view text, std::vector<int32_t>& ids) const override { run(text, false, ids, nullptr); }
  void encode_segment(std::string_view text, bool begins, std::vector<int32_t>& ids) const override {
    run(text, !begins, ids, nullptr);
  }
  void encode_with_ranges(std::string_view text, std::vector<int32_t>& ids,
                          std::vector<TextRange>& ranges) const override {
    run(text, false, ids, &ranges);
  }
  void encode_content(std::string_view text, std::span<const TextRange> content, std::vector<int32_t>& ids,
                      std::vector<TextRange>& ranges) const override {
    run(text, false, ids, &ranges, content);
  }
  bool is_special(int32_t id) const override {
    const auto added = added_by_id_.find(id);
    return id == eos_id() || id == bos_id() || (added != added_by_id_.end() && added->second.special);
  }

  bool is_segmentable() const override { return separate_ && added_.is_segmentable(model_.prefixes_every_segment); }
  size_t find_cut(std::string_view window) const override {
    for (size_t i = window.find(' ', 1); i < window.size() - 1; i = window.find(' ', i + 1)) {
      if (is_alphanumeric(window[i - 1]) && is_alphanumeric(window[i + 1])) return i;
    }
    return std::string_view::npos;
  }

  std::string decode(std::span<const int32_t> ids) const override { return decode(ids, false); }
  std::string decode_with_special(std::span<const int32_t> ids) const override { return decode(ids, true); }
  std::string token(int32_t id) const override {
    const auto added = added_by_id_.find(id);
    if (added != added_by_id_.end()) return added->second.content;
    return is_piece(id) ? model_.pieces[static_cast<size_t>(id)].text : std::string();
  }
  std::string serialized() const override { return serialize_origin(origin_); }
  std::vector<TokenizerFile> files() const override { return origin_.files; }
  std::vector<std::string> warnings() const override { return origin_.warnings; }
  std::string tokenizer_class() const override { return origin_.tokenizer_class; }

 private:
  bool is_piece(int32_t id) const { return id >= 0 && static_cast<size_t>(id) < model_.pieces.size(); }

  void run(std::string_view text, bool continues, std::vector<int32_t>& ids, std::vector<TextRange>* ranges,
           std::span<const TextRange> content = {}) const {
    if (added_.tokens().empty()) {
      encode_between(text, 0, continues, ids, ranges);
    } else {
      cut_added({text, 0, continues}, false, ids, ranges, content);
    }
  }

  /// A segment of the input; with `continues` it is not the first, or is not treated as the first.
  struct Segment {
    std::string_view text;
    size_t begin;
    bool continues;
  };
  /// Tokens that are not normalized come first, as in the tokenizers package; no step of SentencePiece changes them.
  void cut_added(const Segment& from, bool normalized, std::vector<int32_t>& ids, std::vector<TextRange>* ranges,
                 std::span<const TextRange> content) const {
    std::vector<AddedTokens::Segment> found;
    const AddedTokens::IsText is_text = [&](const AddedToken& token, size_t begin, size_t end) {
      return token.special && lies_in(content, from.begin + begin, from.begin + end);
    };
    added_.split(from.text, normalized, found, content.empty() ? nullptr : &is_text);
    for (const AddedTokens::Segment& segment : found) {
      const size_t begin = from.begin + segment.begin;
      const bool continues = from.continues || (begin > 0 && !model_.prefixes_every_segment);
      const Segment piece{from.text.substr(segment.begin, segment.end - segment.begin), begin, continues};
      if (segment.token >= 0) {
        ids.push_back(segment.token);
        if (ranges != nullptr) ranges->push_back({begin, begin + piece.text.size()});
      } else if (normalized) {
        encode_between(piece.text, begin, piece.continues, ids, ranges);
      } else {
        cut_added(piece, true, ids, ranges, content);
      }
    }
  }

  void encode_between(std::string_view text, size_t place, bool continues, std::vector<int32_t>& ids,
                      std::vector<TextRange>* ranges) const {
    std::string normal;
    std::vector<size_t> origins;
    normalizer_.normalize(text, continues, normal, ranges != nullptr ? &origins : nullptr);
    for (size_t& origin : origins) origin += place;
    bool unknown = false;  // the last piece was unknown
    size_t end = 0;
    for (size_t begin = 0; begin < normal.size(); begin = end) {
      end = separate_ ? word_end(normal, begin) : normal.size();
      const std::string_view word = std::string_view(normal).substr(begin, end - begin);
      if (ranges == nullptr) {
        add_word(word, unknown, ids);
      } else {
        thread_local std::vector<PieceRange> found;
        found.clear();
        segmenter_->segment(word, found);
        for (const PieceRange& piece : found) {
          add_piece(normal, {begin + piece.begin, begin + piece.end, piece.id}, unknown, ids, &origins, ranges);
        }
      }
    }
  }

  static size_t word_end(std::string_view text, size_t begin) {
    size_t end = begin;
    while (text.substr(end).starts_with(space_symbol)) end += space_symbol.size();
    return std::min(text.find(space_symbol, end), text.size());
  }

  void add_word(std::string_view word, bool& unknown, std::vector<int32_t>& ids) const {
    const bool cached = word.size() <= WordCache::longest_key && !unknown;
    const uint64_t hash = cached ? hash_of(word) : 0;
    if (cached && WordCache::of_thread(owner_).get(word, hash, ids)) {
      unknown = ids.back() == pieces_.unknown() && !model_.byte_fallback;
      return;
    }
    thread_local std::vector<PieceRange> found;
    found.clear();
    segmenter_->segment(word, found);
    const size_t before = ids.size();
    for (const PieceRange& piece : found) add_piece(word, piece, unknown, ids, nullptr, nullptr);
    if (cached && ids.size() > before) {
      WordCache::of_thread(owner_).put(word, hash, ids.data() + before, ids.size() - before);
    }
  }

  /// Turns an unknown piece into its bytes if the model has them; otherwise adjacent unknown pieces are one token.
  void add_piece(std::string_view text, const PieceRange& piece, bool& unknown, std::vector<int32_t>& ids,
                 const std::vector<size_t>* origins, std::vector<TextRange>* ranges) const {
    const TextRange range = ranges != nullptr ? TextRange{(*origins)[piece.begin], (*origins)[piece.end]} : TextRange{};
    const bool is_unknown = piece.id == pieces_.unknown();
    if (is_unknown && model_.byte_fallback) {
      for (size_t i = piece.begin; i < piece.end; ++i) {
        ids.push_back(pieces_.byte(static_cast<uint8_t>(text[i])));
        if (ranges != nullptr) ranges->push_back({range.begin, i + 1 == piece.end ? range.end : range.begin});
      }
    } else if (is_unknown && unknown) {
      if (ranges != nullptr) ranges->back().end = range.end;
    } else {
      ids.push_back(piece.id);
      if (ranges != nullptr) ranges->push_back(range);
    }
    unknown = is_unknown && !model_.byte_fallback;
  }

  std::string decode(std::span<const int32_t> ids, bool with_special) const {
    std::string text;
    bool begins = true;  // a space here is the one that encoding adds
    bool space_taken = false;
    for (const int32_t id : ids) {
      if (const auto added = added_by_id_.find(id); added != added_by_id_.end()) {
        if (!with_special && added->second.special) continue;  // ignored: a text begins after <s>
        begins = false;
        space_taken = false;
        text += added->second.content;
        continue;
      }
      if (!is_piece(id)) continue;
      const SentencePieceModel::Piece& piece = model_.pieces[static_cast<size_t>(id)];
      if (piece.type == Type::byte) {
        text += static_cast<char>(byte_of_token(piece.text));
        continue;
      }
      if (space_taken || !text.empty()) begins = false;
      space_taken = false;
      if (piece.type == Type::control) {
        if (with_special) text += piece.text;
      } else if (piece.type == Type::unknown) {
        text += model_.unk_surface;
      } else {
        space_taken = add_surface(piece.text, begins, text);
      }
    }
    return text;
  }

  /// Returns true if a space at the beginning was omitted.
  bool add_surface(std::string_view piece, bool begins, std::string& text) const {
    bool taken = false;
    if (begins && (model_.add_dummy_prefix || model_.remove_extra_whitespaces) && piece.starts_with(space_symbol)) {
      piece.remove_prefix(space_symbol.size());
      taken = !model_.remove_extra_whitespaces;  // otherwise all of them are omitted
    }
    while (!piece.empty()) {
      const size_t space = std::min(piece.find(space_symbol), piece.size());
      text += piece.substr(0, space);
      piece.remove_prefix(space);
      if (piece.empty()) break;
      text += ' ';
      piece.remove_prefix(space_symbol.size());
    }
    return taken;
  }

  SentencePieceModel model_;
  TokenizerOrigin origin_;
  PieceTable pieces_;
  SentencePieceNormalizer normalizer_;
  std::unique_ptr<PieceSegmenter> segmenter_;
  AddedTokens added_;
  std::unordered_map<int32_t, AddedToken> added_by_id_;
  int64_t size_ = static_cast<int64_t>(model_.pieces.size());
  bool separate_ = false;
  uint64_t owner_ = WordCache::new_owner();
};

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(SentencePieceModel model, TokenizerOrigin origin) {
  return std::make_unique<SentencePieceTokenizer>(std::move(model), std::move(origin));
}

}  // namespace llmtrain
