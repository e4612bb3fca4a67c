#include "text/pipeline/pipeline_tokenizer.hpp"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "core/error.hpp"

namespace llmtrain {
namespace {

bool is_alphanumeric(char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }

class PipelineTokenizer final : public Tokenizer {
 public:
  PipelineTokenizer(TokenizerParts parts, TokenizerOrigin origin)
      : parts_(std::move(parts)), origin_(std::move(origin)), size_(parts_.model->vocabulary().id_limit()) {
    for (const AddedToken& token : parts_.added.tokens()) {
      size_ = std::max(size_, int64_t{token.id} + 1);
      added_[token.id] = token;
    }
    for (const AddedToken& token : parts_.added.tokens()) {
      if (token.special) special_.insert({token.content, true});
    }
    works_on_parts_ = can_work_on_parts();
    // Normalizers drop characters and make several of one: then the first piece need not be the one that begins the
    // input, nor the only one.
    const auto asks = [](const auto& step) { return step->asks_for_start(); };
    needs_origins_ =
        !parts_.normalizers.empty() && std::any_of(parts_.pre_tokenizers.begin(), parts_.pre_tokenizers.end(), asks);
    decode_reach_ = find_decode_reach();
  }

  std::string kind() const override { return parts_.model->kind(); }
  int64_t vocabulary_size() const override { return size_; }
  int32_t eos_id() const override { return origin_.eos; }
  int32_t bos_id() const override { return origin_.bos; }
  int32_t pad_id() const override { return origin_.pad; }

  void encode(std::string_view text, std::vector<int32_t>& ids) const override { encode_part(text, true, ids); }

  void encode_part(std::string_view text, bool begins, std::vector<int32_t>& ids) const override {
    const size_t before = ids.size();
    try {
      run(text, !begins, ids, nullptr);
    } catch (const EncodeError&) {  // once more, to know where in the text it is
      ids.resize(before);
      Ranges ranges;
      run(text, !begins, ids, &ranges);
    }
  }

  void encode_with_ranges(std::string_view text, std::vector<int32_t>& ids,
                          std::vector<TextRange>& ranges) const override {
    Ranges wanted;
    std::vector<int32_t> fresh;
    run(text, false, fresh, &wanted);
    trim_ranges(parts_.post, text, wanted.tokens, wanted.ranges);
    ids.insert(ids.end(), fresh.begin(), fresh.end());
    ranges.insert(ranges.end(), wanted.ranges.begin(), wanted.ranges.end());
  }

  void add_special_tokens(std::vector<int32_t>& ids, std::vector<TextRange>* ranges) const override {
    const std::vector<int32_t>&before = parts_.post.before, &after = parts_.post.after;
    ids.insert(ids.begin(), before.begin(), before.end());
    ids.insert(ids.end(), after.begin(), after.end());
    if (ranges == nullptr) return;
    ranges->insert(ranges->begin(), before.size(), {});
    ranges->insert(ranges->end(), after.size(), {});
  }

  std::string decode(std::span<const int32_t> ids) const override { return decode(ids, false); }
  size_t decode_reach() const override { return decode_reach_; }
  std::string decode_with_special(std::span<const int32_t> ids) const override { return decode(ids, true); }
  std::string token(int32_t id) const override {
    const auto added = added_.find(id);
    return added != added_.end() ? added->second.content : std::string(parts_.model->vocabulary().token(id));
  }
  std::string serialized() const override { return serialize_origin(origin_); }
  std::vector<TokenizerFile> files() const override { return origin_.files; }
  std::vector<std::string> warnings() const override { return origin_.warnings; }
  std::string tokenizer_class() const override { return origin_.tokenizer_class; }

  bool works_on_parts() const override { return works_on_parts_; }

  /// Between a letter or digit and a single space before a letter, all of ASCII: no pattern, token or normalization
  /// reaches over it (can_work_on_parts).
  size_t find_cut(std::string_view window) const override {
    for (size_t i = window.find(' ', 1); i < window.size() - 1; i = window.find(' ', i + 1)) {
      if (is_alphanumeric(window[i - 1]) && is_alphanumeric(window[i + 1])) return i;
    }
    return std::string_view::npos;
  }

 private:
  struct Ranges {
    std::vector<TextRange> ranges;
    std::vector<std::string> tokens;
  };

  /// Everything that one call needs.
  struct Run {
    std::vector<int32_t>& ids;
    Ranges* ranges;
    const char* continued;  // where a part that does not begin its text begins; else null
  };

  void run(std::string_view text, bool continues, std::vector<int32_t>& ids, Ranges* ranges) const {
    Run state{ids, ranges, continues ? text.data() : nullptr};
    AlignedText input;
    Chunk chunk{text, nullptr, !continues, 0};
    if (ranges != nullptr || needs_origins_) {
      input.assign_input(text);
      chunk = input.chunk();
    }
    if (chunk.text.empty()) return;
    cut_added(chunk, false, state, [&](const Chunk& between) { normalize_chunk(between, state); });
  }

  template <class Use>
  void cut_added(const Chunk& chunk, bool normalized, Run& state, const Use& use) const {
    if (!parts_.added.any(normalized)) {
      if (!chunk.text.empty()) use(chunk.part(0, chunk.text.size()));
      return;
    }
    std::vector<AddedTokens::Part> found;
    parts_.added.split(chunk.text, normalized, found);
    for (const AddedTokens::Part& part : found) {
      const Chunk piece = chunk.part(part.begin, part.end);
      if (part.token < 0) {
        use(piece);
      } else {
        state.ids.push_back(part.token);
        if (state.ranges != nullptr) put_range(piece, {0, piece.text.size()}, std::string(piece.text), *state.ranges);
      }
    }
  }

  void normalize_chunk(const Chunk& chunk, Run& state) const {
    AlignedText one, other;
    const bool continues = chunk.text.data() == state.continued;
    const Chunk normal =
        parts_.normalizers.empty() ? chunk : normalize(parts_.normalizers, chunk, continues, one, other);
    cut_added(normal, true, state, [&](const Chunk& between) { pre_tokenize(between, 0, state); });
  }

  void pre_tokenize(const Chunk& chunk, size_t step, Run& state) const {
    if (chunk.text.empty()) return;
    if (step == parts_.pre_tokenizers.size()) {
      tokenize(chunk, state);
      return;
    }
    const auto next = [&](const Chunk& piece) { pre_tokenize(piece, step + 1, state); };
    parts_.pre_tokenizers[step]->apply(chunk, ChunkSink(next));
  }

  void tokenize(const Chunk& piece, Run& state) const {
    if (state.ranges == nullptr) {
      parts_.model->tokenize(piece.text, {state.ids});
      return;
    }
    std::vector<TextRange> places;
    const size_t before = state.ids.size();
    try {
      parts_.model->tokenize(piece.text, {state.ids, &places});
    } catch (const EncodeError& error) {
      const bool known = piece.origins != nullptr && error.byte() < piece.text.size();
      throw EncodeError(known ? piece.origins[error.byte()].begin : error.byte(), error.reason());
    }
    for (size_t i = 0; i < places.size(); ++i) {
      put_range(piece, places[i], std::string(parts_.model->vocabulary().token(state.ids[before + i])), *state.ranges);
    }
  }

  static void put_range(const Chunk& piece, const TextRange& place, std::string token, Ranges& ranges) {
    const bool inside = piece.origins != nullptr && place.begin < place.end && place.end <= piece.text.size();
    ranges.ranges.push_back(inside ? TextRange{piece.origins[place.begin].begin, piece.origins[place.end - 1].end}
                                   : place);
    ranges.tokens.push_back(std::move(token));
  }

  std::string decode(std::span<const int32_t> ids, bool with_special) const {
    std::vector<std::string> tokens;
    const Vocabulary& vocabulary = parts_.model->vocabulary();
    for (const int32_t id : ids) {
      const auto added = added_.find(id);
      if (added != added_.end()) {
        if (with_special || !special_.contains(added->second.found)) tokens.push_back(added->second.found);
      } else if (vocabulary.has(id)) {
        tokens.emplace_back(vocabulary.token(id));
      }
    }
    for (const auto& decoder : parts_.decoders) decoder->apply(tokens);
    std::string text;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0 && !parts_.has_decoder) text += ' ';
      text += tokens[i];
    }
    return text;
  }

  size_t find_decode_reach() const {
    DecodeReach reach;
    reach.longest_token = parts_.model->vocabulary().longest();
    for (const auto& [id, token] : added_) reach.longest_token = std::max(reach.longest_token, token.found.size());
    for (const auto& decoder : parts_.decoders) decoder->extend(reach);
    return reach.bytes;
  }

  bool can_work_on_parts() const {
    const auto works = [](const auto& step) { return step->works_on_parts(); };
    if (!std::all_of(parts_.normalizers.begin(), parts_.normalizers.end(), works)) return false;
    if (!std::all_of(parts_.pre_tokenizers.begin(), parts_.pre_tokenizers.end(), works)) return false;
    const auto prefixes = [](const auto& step) { return step->only_at_start(); };
    const bool prefixed = std::any_of(parts_.normalizers.begin(), parts_.normalizers.end(), prefixes);
    if (!parts_.added.works_on_parts(prefixed)) return false;
    // Pieces end before such a space, or the model cuts there by itself.
    return cuts("ab cd") && cuts("a1 2b") && cuts("a B");
  }

  /// Whether the piece that the space of `text` is in begins with it, or it is in none.
  bool cuts(std::string_view text) const {
    AlignedText one, other;
    const Chunk normal = normalize(parts_.normalizers, {text, nullptr, true, 0}, false, one, other);
    bool separate = true;
    const auto look = [&](const Chunk& piece) {
      for (const std::string_view space : {" ", "\xE2\x96\x81", "\xC4\xA0"}) {
        const size_t at = piece.text.find(space, 1);
        if (at == std::string_view::npos) continue;
        separate = separate && space == "\xE2\x96\x81" && parts_.model->words_are_separate();
      }
    };
    probe(normal, 0, ChunkSink(look));
    return separate;
  }
  void probe(const Chunk& chunk, size_t step, const ChunkSink& sink) const {
    if (step == parts_.pre_tokenizers.size()) {
      sink(chunk);
      return;
    }
    const auto next = [&](const Chunk& piece) { probe(piece, step + 1, sink); };
    parts_.pre_tokenizers[step]->apply(chunk, ChunkSink(next));
  }

  TokenizerParts parts_;
  TokenizerOrigin origin_;
  int64_t size_;
  std::unordered_map<int32_t, AddedToken> added_;
  std::unordered_map<std::string, bool> special_;  // contents of special tokens
  bool works_on_parts_ = false;
  size_t decode_reach_ = 0;
  bool needs_origins_ = false;  // whether a piece begins the input shows only in them
};

}  // namespace

std::unique_ptr<Tokenizer> make_pipeline_tokenizer(TokenizerParts parts, TokenizerOrigin origin) {
  return std::make_unique<PipelineTokenizer>(std::move(parts), std::move(origin));
}

}  // namespace llmtrain
