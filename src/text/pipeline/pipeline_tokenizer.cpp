#include "text/pipeline/pipeline_tokenizer.hpp"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "core/error.hpp"
#include "text/unicode/character_sets.hpp"
#include "text/unicode/characters.hpp"

namespace llmtrain {
namespace {

bool is_alphanumeric(char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }

constexpr char32_t byte_level_space = 0x120;  // represents a space in GPT-2's byte form

bool is_blank(char32_t c) { return c == byte_level_space || is_white_space(c); }

/// Excludes white space at the ends of tokens from their ranges in `text`, like ByteLevel: as many characters as the
/// token has, whatever they are. `tokens` are spelled as in the vocabulary.
void trim_ranges(const PostProcessor& options, std::string_view text, const std::vector<std::string>& tokens,
                 std::vector<TextRange>& ranges) {
  if (!options.trim_offsets) return;
  for (size_t i = 0; i < ranges.size(); ++i) {
    const std::u32string token = to_characters(tokens[i]);
    TextRange& range = ranges[i];
    size_t leading = static_cast<size_t>(std::ranges::find_if_not(token, is_blank) - token.begin());
    const size_t trailing =
        static_cast<size_t>(std::find_if_not(token.rbegin(), token.rend(), is_blank) - token.rbegin());
    if (leading > 0) {
      const bool first = i == 0 || range.begin == 0;
      if (first && options.add_prefix_space && leading == 1) leading = 0;
      for (; leading > 0 && range.begin < range.end; --leading) {
        range.begin = std::min(range.begin + character_at(text, range.begin).length, range.end);
      }
    }
    for (size_t n = 0; n < trailing && range.end > range.begin; ++n) {
      range.end = std::max(range.end - character_before(text, range.end).length, range.begin);
    }
  }
}

class PipelineTokenizer final : public Tokenizer {
 public:
  PipelineTokenizer(TokenizerSteps steps, TokenizerOrigin origin)
      : steps_(std::move(steps)), origin_(std::move(origin)), size_(steps_.model->vocabulary().id_limit()) {
    for (const AddedToken& token : steps_.added.tokens()) {
      size_ = std::max(size_, int64_t{token.id} + 1);
      added_[token.id] = token;
    }
    for (const AddedToken& token : steps_.added.tokens()) {
      if (token.special) special_.insert({token.content, true});
    }
    is_segmentable_ = can_encode_segments();
    // Normalizers can remove characters and split one into several; then the first word is not necessarily the one that
    // begins the input, nor the only one.
    const auto asks = [](const auto& step) { return step->asks_for_start(); };
    needs_origins_ = !steps_.normalizers.empty() && std::ranges::any_of(steps_.pre_tokenizers, asks);
    decode_reach_ = find_decode_reach();
  }

  std::string kind() const override { return steps_.model->kind(); }
  int64_t vocabulary_size() const override { return size_; }
  int32_t eos_id() const override { return origin_.eos; }
  int32_t bos_id() const override { return origin_.bos; }
  int32_t pad_id() const override { return origin_.pad; }

  void encode(std::string_view text, std::vector<int32_t>& ids) const override { encode_segment(text, true, ids); }

  void encode_segment(std::string_view text, bool begins, std::vector<int32_t>& ids) const override {
    const size_t before = ids.size();
    try {
      run(text, !begins, ids, nullptr);
    } catch (const EncodeError&) {  // encodes it again to find its position in the text
      ids.resize(before);
      Ranges ranges;
      run(text, !begins, ids, &ranges);
    }
  }

  void encode_with_ranges(std::string_view text, std::vector<int32_t>& ids,
                          std::vector<TextRange>& ranges) const override {
    encode_content(text, {}, ids, ranges);
  }

  void encode_content(std::string_view text, std::span<const TextRange> content, std::vector<int32_t>& ids,
                      std::vector<TextRange>& ranges) const override {
    Ranges wanted;
    std::vector<int32_t> fresh;
    run(text, false, fresh, &wanted, content);
    trim_ranges(steps_.post, text, wanted.tokens, wanted.ranges);
    ids.insert(ids.end(), fresh.begin(), fresh.end());
    ranges.insert(ranges.end(), wanted.ranges.begin(), wanted.ranges.end());
  }

  bool is_special(int32_t id) const override {
    const auto added = added_.find(id);
    return id == eos_id() || id == bos_id() || (added != added_.end() && added->second.special);
  }

  void add_special_tokens(std::vector<int32_t>& ids, std::vector<TextRange>* ranges) const override {
    const std::vector<int32_t>&before = steps_.post.before, &after = steps_.post.after;
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
    return added != added_.end() ? added->second.content : std::string(steps_.model->vocabulary().token(id));
  }
  std::string serialized() const override { return serialize_origin(origin_); }
  std::vector<TokenizerFile> files() const override { return origin_.files; }
  std::vector<std::string> warnings() const override { return origin_.warnings; }
  std::string tokenizer_class() const override { return origin_.tokenizer_class; }

  bool is_segmentable() const override { return is_segmentable_; }

  /// Returns true between a letter or digit and a single space before a letter, all ASCII: no pattern, token or
  /// normalization extends over this position (can_encode_segments).
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

  /// Working memory of one call.
  struct Run {
    std::vector<int32_t>& ids;
    Ranges* ranges;
    const char* continued;               // start of a segment that does not begin its text, otherwise null
    std::span<const TextRange> content;  // where special tokens are text
  };

  void run(std::string_view text, bool continues, std::vector<int32_t>& ids, Ranges* ranges,
           std::span<const TextRange> content = {}) const {
    Run state{ids, ranges, continues ? text.data() : nullptr, content};
    AlignedText input;
    TextView view{text, nullptr, !continues, 0};
    if (ranges != nullptr || needs_origins_) {
      input.assign_input(text);
      view = input.view();
    }
    if (view.text.empty()) return;
    cut_added(view, false, state, [&](const TextView& between) { normalize_text(between, state); });
  }

  template <class Use>
  void cut_added(const TextView& view, bool normalized, Run& state, const Use& use) const {
    if (!steps_.added.any(normalized)) {
      if (!view.text.empty()) use(view.range(0, view.text.size()));
      return;
    }
    std::vector<AddedTokens::Segment> found;
    const AddedTokens::IsText is_text = [&](const AddedToken& token, size_t begin, size_t end) {
      if (!token.special || begin == end) return false;
      if (view.origins != nullptr) {
        end = view.origins[end - 1].end;
        begin = view.origins[begin].begin;
      }
      return lies_in(state.content, begin, end);
    };
    steps_.added.split(view.text, normalized, found, state.content.empty() ? nullptr : &is_text);
    for (const AddedTokens::Segment& segment : found) {
      const TextView text = view.range(segment.begin, segment.end);
      if (segment.token < 0) {
        use(text);
      } else {
        state.ids.push_back(segment.token);
        if (state.ranges != nullptr) put_range(text, {0, text.text.size()}, std::string(text.text), *state.ranges);
      }
    }
  }

  void normalize_text(const TextView& view, Run& state) const {
    AlignedText one, other;
    const bool continues = view.text.data() == state.continued;
    const TextView normal =
        steps_.normalizers.empty() ? view : normalize(steps_.normalizers, view, continues, one, other);
    cut_added(normal, true, state, [&](const TextView& between) { pre_tokenize(between, 0, state); });
  }

  void pre_tokenize(const TextView& view, size_t step, Run& state) const {
    if (view.text.empty()) return;
    if (step == steps_.pre_tokenizers.size()) {
      tokenize(view, state);
      return;
    }
    const auto next = [&](const TextView& word) { pre_tokenize(word, step + 1, state); };
    steps_.pre_tokenizers[step]->apply(view, TextSink(next));
  }

  void tokenize(const TextView& word, Run& state) const {
    if (state.ranges == nullptr) {
      steps_.model->tokenize(word.text, {state.ids});
      return;
    }
    std::vector<TextRange> ranges;
    const size_t before = state.ids.size();
    try {
      steps_.model->tokenize(word.text, {state.ids, &ranges});
    } catch (const EncodeError& error) {
      const bool known = word.origins != nullptr && error.byte() < word.text.size();
      throw EncodeError(known ? word.origins[error.byte()].begin : error.byte(), error.reason());
    }
    for (size_t i = 0; i < ranges.size(); ++i) {
      put_range(word, ranges[i], std::string(steps_.model->vocabulary().token(state.ids[before + i])), *state.ranges);
    }
  }

  static void put_range(const TextView& word, const TextRange& range, std::string token, Ranges& ranges) {
    const bool inside = word.origins != nullptr && range.begin < range.end && range.end <= word.text.size();
    ranges.ranges.push_back(inside ? TextRange{word.origins[range.begin].begin, word.origins[range.end - 1].end}
                                   : range);
    ranges.tokens.push_back(std::move(token));
  }

  std::string decode(std::span<const int32_t> ids, bool with_special) const {
    std::vector<std::string> tokens;
    const Vocabulary& vocabulary = steps_.model->vocabulary();
    for (const int32_t id : ids) {
      const auto added = added_.find(id);
      if (added != added_.end()) {
        if (with_special || !special_.contains(added->second.found)) tokens.push_back(added->second.found);
      } else if (vocabulary.has(id)) {
        tokens.emplace_back(vocabulary.token(id));
      }
    }
    for (const auto& decoder : steps_.decoders) decoder->apply(tokens);
    std::string text;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0 && !steps_.has_decoder) text += ' ';
      text += tokens[i];
    }
    return text;
  }

  size_t find_decode_reach() const {
    DecodeReach reach;
    reach.longest_token = steps_.model->vocabulary().longest();
    for (const auto& [id, token] : added_) reach.longest_token = std::max(reach.longest_token, token.found.size());
    for (const auto& decoder : steps_.decoders) decoder->extend(reach);
    return reach.bytes;
  }

  bool can_encode_segments() const {
    const auto works = [](const auto& step) { return step->is_segmentable(); };
    if (!std::ranges::all_of(steps_.normalizers, works)) return false;
    if (!std::ranges::all_of(steps_.pre_tokenizers, works)) return false;
    const auto prefixes = [](const auto& step) { return step->only_at_start(); };
    const bool prefixed = std::ranges::any_of(steps_.normalizers, prefixes);
    if (!steps_.added.is_segmentable(prefixed)) return false;
    // Words end before such a space, or the model cuts there itself.
    return cuts("ab cd") && cuts("a1 2b") && cuts("a B");
  }

  /// Returns true if the word with the space of `text` begins with it, or if no word contains it.
  bool cuts(std::string_view text) const {
    AlignedText one, other;
    const TextView normal = normalize(steps_.normalizers, {text, nullptr, true, 0}, false, one, other);
    bool separate = true;
    const auto look = [&](const TextView& word) {
      for (const std::string_view space : {" ", "\xE2\x96\x81", "\xC4\xA0"}) {
        const size_t at = word.text.find(space, 1);
        if (at == std::string_view::npos) continue;
        separate = separate && space == "\xE2\x96\x81" && steps_.model->words_are_separate();
      }
    };
    probe(normal, 0, TextSink(look));
    return separate;
  }
  void probe(const TextView& view, size_t step, const TextSink& sink) const {
    if (step == steps_.pre_tokenizers.size()) {
      sink(view);
      return;
    }
    const auto next = [&](const TextView& word) { probe(word, step + 1, sink); };
    steps_.pre_tokenizers[step]->apply(view, TextSink(next));
  }

  TokenizerSteps steps_;
  TokenizerOrigin origin_;
  int64_t size_;
  std::unordered_map<int32_t, AddedToken> added_;
  std::unordered_map<std::string, bool> special_;  // contents of special tokens
  bool is_segmentable_ = false;
  size_t decode_reach_ = 0;
  bool needs_origins_ = false;  // True if only the special tokens depend on whether a word begins the input
};

}  // namespace

std::unique_ptr<Tokenizer> make_pipeline_tokenizer(TokenizerSteps steps, TokenizerOrigin origin) {
  return std::make_unique<PipelineTokenizer>(std::move(steps), std::move(origin));
}

}  // namespace llmtrain
