#include <algorithm>
#include <utility>

#include "text/pipeline/matches.hpp"
#include "text/pipeline/pre_tokenizer.hpp"
#include "text/unicode/character_sets.hpp"

namespace llmtrain {
namespace {

/// Turns a series of matches, and the gaps between them, into words.
class Splitter {
 public:
  Splitter(const TextView& from, SplitBehavior behavior, bool invert, const TextSink& sink)
      : from_(from), behavior_(behavior), invert_(invert), sink_(sink) {}

  /// Adds a match; everything before it was added.
  void match(size_t begin, size_t end) {
    if (begin > done_) range(begin, false);
    range(end, true);
  }
  void finish() {
    if (done_ < from_.text.size()) range(from_.text.size(), false);
    flush();
  }

 private:
  /// Adds the bytes from done_ to `end`, a match or a gap.
  void range(size_t end, bool is_match) {
    const size_t begin = done_;
    done_ = end;
    is_match = is_match != invert_;
    switch (behavior_) {
      case SplitBehavior::isolated:
        emit(begin, end);
        break;
      case SplitBehavior::removed:
        if (!is_match) emit(begin, end);
        break;
      case SplitBehavior::contiguous:
        join(begin, end, any_ && is_match == previous_);
        break;
      case SplitBehavior::merged_with_previous:
        join(begin, end, any_ && is_match && !previous_);
        break;
      case SplitBehavior::merged_with_next:  // a gap joins the match before it, the last one of adjacent matches
        join(begin, end, any_ && !is_match && previous_);
        break;
    }
    previous_ = is_match;
    any_ = true;
  }
  void join(size_t begin, size_t end, bool joins) {
    if (!joins) {
      flush();
      held_begin_ = begin;
    }
    held_end_ = end;
  }
  void flush() {
    if (held_end_ > held_begin_) emit(held_begin_, held_end_);
    held_begin_ = held_end_;
  }
  void emit(size_t begin, size_t end) {
    if (end > begin) sink_(from_.range(begin, end));
  }

  const TextView& from_;
  SplitBehavior behavior_;
  bool invert_;
  const TextSink& sink_;
  size_t done_ = 0;
  size_t held_begin_ = 0, held_end_ = 0;
  bool previous_ = false;
  bool any_ = false;
};

bool keeps_matches_apart(SplitBehavior behavior) {
  return behavior == SplitBehavior::isolated || behavior == SplitBehavior::removed;
}

class PatternSplit final : public PreTokenizer {
 public:
  PatternSplit(const SplitPattern& pattern, SplitBehavior behavior, bool invert)
      : pattern_(pattern), behavior_(behavior), invert_(invert) {}

  void apply(const TextView& from, const TextSink& sink) const override {
    size_t begin = 0, end = 0;
    if (behavior_ == SplitBehavior::isolated && from.origins == nullptr) {
      size_t done = 0;
      while (pattern_.next(from.text, done, begin, end)) {
        if (begin > done) sink(from.range(done, begin));
        sink(from.range(begin, end));
        done = end;
      }
      if (done < from.text.size()) sink(from.range(done, from.text.size()));
      return;
    }
    Splitter splitter(from, behavior_, invert_, sink);
    for (size_t at = 0; pattern_.next(from.text, at, begin, end); at = end) splitter.match(begin, end);
    splitter.finish();
  }
  bool is_segmentable() const override { return keeps_matches_apart(behavior_); }

 private:
  const SplitPattern& pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

/// Splits at matches, see matches.hpp.
template <class ForMatches>
class MatchSplit final : public PreTokenizer {
 public:
  MatchSplit(ForMatches for_matches, SplitBehavior behavior, bool invert, bool is_segmentable)
      : for_matches_(std::move(for_matches)), behavior_(behavior), invert_(invert), is_segmentable_(is_segmentable) {}
  void apply(const TextView& from, const TextSink& sink) const override {
    Splitter splitter(from, behavior_, invert_, sink);
    for_matches_(from.text, [&](size_t begin, size_t end) { splitter.match(begin, end); });
    splitter.finish();
  }
  bool is_segmentable() const override { return is_segmentable_; }

 private:
  ForMatches for_matches_;
  SplitBehavior behavior_;
  bool invert_, is_segmentable_;
};

template <class ForMatches>
std::unique_ptr<PreTokenizer> match_split(ForMatches for_matches, SplitBehavior behavior, bool invert,
                                          bool is_segmentable) {
  return std::make_unique<MatchSplit<ForMatches>>(std::move(for_matches), behavior, invert, is_segmentable);
}

/// Splits at every character of a kind.
std::unique_ptr<PreTokenizer> character_split(bool (*is)(char32_t), SplitBehavior behavior) {
  const auto for_matches = [is](std::string_view text, const auto& use) {
    for (size_t i = 0; i < text.size();) {
      const Character c = character_at(text, i);
      if (is(c.code)) use(i, i + c.length);
      i += c.length;
    }
  };
  return match_split(for_matches, behavior, false, behavior != SplitBehavior::merged_with_previous);
}

class WordSplitPreTokenizer final : public PreTokenizer {
 public:
  void apply(const TextView& from, const TextSink& sink) const override {
    enum class Kind : uint8_t { space, word, other };
    const auto kind_of = [](char32_t c) {
      return is_word_character(c) ? Kind::word : is_white_space(c) ? Kind::space : Kind::other;
    };
    for (size_t i = 0; i < from.text.size();) {
      const Character first = character_at(from.text, i);
      const Kind kind = kind_of(first.code);
      size_t end = i + first.length;
      while (end < from.text.size()) {
        const Character c = character_at(from.text, end);
        if (kind_of(c.code) != kind) break;
        end += c.length;
      }
      if (kind != Kind::space) sink(from.range(i, end));
      i = end;
    }
  }
};

class FixedLengthSplit final : public PreTokenizer {
 public:
  explicit FixedLengthSplit(size_t characters) : characters_(characters) {}
  void apply(const TextView& from, const TextSink& sink) const override {
    for (size_t begin = 0; begin < from.text.size();) {
      size_t end = begin;
      for (size_t n = 0; n < characters_ && end < from.text.size(); ++n) end += character_at(from.text, end).length;
      sink(from.range(begin, end));
      begin = end;
    }
  }
  bool is_segmentable() const override { return false; }

 private:
  size_t characters_;
};

class Metaspace final : public PreTokenizer {
 public:
  Metaspace(char32_t replacement, PrependScheme scheme, bool split) : scheme_(scheme), split_(split) {
    append_character(replacement_, replacement);
    replace_ = make_replace_normalizer(" ", replacement_);
    prepend_ = make_prepend_normalizer(replacement_, true);
  }

  void apply(const TextView& from, const TextSink& sink) const override {
    AlignedText replaced, prepended;
    TextView text = from;
    const auto change = [&](const Normalizer& normalizer, AlignedText& changed) {
      if (normalizer.keeps(text.text)) return;
      changed.reset(from);
      normalizer.apply(text, changed);
      text = changed.view();
    };
    change(*replace_, replaced);
    if (scheme_ == PrependScheme::always || (scheme_ == PrependScheme::first && from.starts_input)) {
      change(*prepend_, prepended);
    }
    if (!split_) {
      sink(text);
      return;
    }
    Splitter splitter(text, SplitBehavior::merged_with_next, false, sink);
    literal_matches(replacement_)(text.text, [&](size_t begin, size_t end) { splitter.match(begin, end); });
    splitter.finish();
  }
  bool asks_for_start() const override { return scheme_ == PrependScheme::first; }

 private:
  std::string replacement_;
  PrependScheme scheme_;
  bool split_;
  std::unique_ptr<Normalizer> replace_, prepend_;
};

class NormalizingStep final : public PreTokenizer {
 public:
  explicit NormalizingStep(std::unique_ptr<Normalizer> normalizer) : normalizer_(std::move(normalizer)) {}
  void apply(const TextView& from, const TextSink& sink) const override {
    if (normalizer_->keeps(from.text)) {
      sink(from);
      return;
    }
    AlignedText changed;
    changed.reset(from);
    normalizer_->apply(from, changed);
    sink(changed.view());
  }
  bool is_segmentable() const override { return normalizer_->is_segmentable(); }

 private:
  std::unique_ptr<Normalizer> normalizer_;
};

}  // namespace

std::unique_ptr<PreTokenizer> make_pattern_split(const SplitPattern& pattern, SplitBehavior behavior, bool invert) {
  return std::make_unique<PatternSplit>(pattern, behavior, invert);
}
std::unique_ptr<PreTokenizer> make_regex_split(RegexMatch match, SplitBehavior behavior, bool invert) {
  return match_split(native_matches(match), behavior, invert, keeps_matches_apart(behavior));
}
std::unique_ptr<PreTokenizer> make_regex_split(std::unique_ptr<Regex> regex, SplitBehavior behavior, bool invert) {
  return match_split(regex_matches(std::move(regex)), behavior, invert, false);  // they can depend on the whole text
}
std::unique_ptr<PreTokenizer> make_literal_split(const std::string& literal, SplitBehavior behavior, bool invert) {
  const bool is_space = literal == " " && !invert && behavior != SplitBehavior::merged_with_previous;
  return match_split(literal_matches(literal), behavior, invert, is_space || literal.find(' ') == std::string::npos);
}
std::unique_ptr<PreTokenizer> make_digits_split(bool individual) {
  return character_split(is_numeric, individual ? SplitBehavior::isolated : SplitBehavior::contiguous);
}
std::unique_ptr<PreTokenizer> make_punctuation_split(SplitBehavior behavior) {
  return character_split(is_bert_punctuation, behavior);
}
std::unique_ptr<PreTokenizer> make_white_space_split() {
  return character_split(is_white_space, SplitBehavior::removed);
}
std::unique_ptr<PreTokenizer> make_word_split_pre_tokenizer() { return std::make_unique<WordSplitPreTokenizer>(); }
std::unique_ptr<PreTokenizer> make_fixed_length_split(size_t characters) {
  return std::make_unique<FixedLengthSplit>(characters);
}
std::unique_ptr<PreTokenizer> make_metaspace(char32_t replacement, PrependScheme scheme, bool split) {
  return std::make_unique<Metaspace>(replacement, scheme, split);
}
std::unique_ptr<PreTokenizer> make_prefix_space() { return make_normalizing_step(make_prepend_normalizer(" ", true)); }
std::unique_ptr<PreTokenizer> make_normalizing_step(std::unique_ptr<Normalizer> normalizer) {
  return std::make_unique<NormalizingStep>(std::move(normalizer));
}

}  // namespace llmtrain
