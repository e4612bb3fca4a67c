#pragma once
// Text between the input and its tokens. If offsets are requested, every byte knows the input bytes that it came from.

#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.hpp"
#include "text/unicode/characters.hpp"

namespace llmtrain {

/// View of a text after some of the steps. Owns nothing.
struct TextView {
  std::string_view text;
  const TextRange* origins = nullptr;  ///< input range of each byte; null if no offsets are requested
  bool starts_input = false;           ///< True if it begins the input
  size_t origin_begin = 0;             ///< its offset in the input; known with origins only

  TextView range(size_t begin, size_t end) const {
    if (origins == nullptr) return {text.substr(begin, end - begin), nullptr, starts_input && begin == 0, 0};
    const size_t origin = begin < end ? origins[begin].begin : origin_begin;
    return {text.substr(begin, end - begin), origins + begin, origin == 0, origin};
  }
};

/// Reference to a callable that outlives it: calls allocate nothing.
class TextSink {
 public:
  template <class F>
  explicit TextSink(const F& callable)
      : object_(&callable),
        call_([](const void* object, const TextView& view) { (*static_cast<const F*>(object))(view); }) {}
  void operator()(const TextView& view) const { call_(object_, view); }

 private:
  const void* object_;
  void (*call_)(const void*, const TextView&);
};

/// Text that a step writes.
class AlignedText {
 public:
  /// Makes it empty; with origins if the input has them.
  void reset(const TextView& like) {
    text_.clear();
    origins_.clear();
    tracked_ = like.origins != nullptr;
    starts_input_ = like.starts_input;
    origin_begin_ = like.origin_begin;
  }
  /// Takes the whole input before any step, with origins: the origin of a byte is its whole character.
  void assign_input(std::string_view text) {
    text_ = text;
    tracked_ = true;
    starts_input_ = true;
    origin_begin_ = 0;
    origins_.clear();
    origins_.reserve(text.size());
    for (size_t i = 0; i < text.size();) {
      const size_t length = character_at(text, i).length;
      origins_.insert(origins_.end(), length, {i, i + length});
      i += length;
    }
  }

  void append(const TextView& view) {
    text_ += view.text;
    if (tracked_) origins_.insert(origins_.end(), view.origins, view.origins + view.text.size());
  }
  void append(std::string_view text, const TextRange& origin) {
    text_ += text;
    if (tracked_) origins_.insert(origins_.end(), text.size(), origin);
  }
  void append(char32_t code, const TextRange& origin) {
    const size_t before = text_.size();
    append_character(text_, code);
    if (tracked_) origins_.insert(origins_.end(), text_.size() - before, origin);
  }

  /// Returns a view with the position of the text that it was reset for.
  TextView view() const { return {text_, tracked_ ? origins_.data() : nullptr, starts_input_, origin_begin_}; }

 private:
  std::string text_;
  std::vector<TextRange> origins_;
  bool tracked_ = false;
  bool starts_input_ = true;
  size_t origin_begin_ = 0;
};

/// Writes a changed text character by character, with the origins that the tokenizers library gives: `change` is 0 for
/// a character that replaces the next one, 1 for a new character, which shares the origin of the one before it, and -n
/// for a character that replaces the next one while n more are removed.
class CharacterRewriter {
 public:
  CharacterRewriter(const TextView& from, AlignedText& to) : from_(from), to_(to) {}
  void skip(size_t characters) {
    for (; characters > 0 && at_ < from_.text.size(); --characters) at_ += character_at(from_.text, at_).length;
  }
  void put(char32_t code, int change) {
    to_.append(code, origin(change));
    if (change <= 0) skip(1 + static_cast<size_t>(-change));
  }
  /// Writes likewise, but later removals can still change the character's origin.
  void hold(char32_t code, int change) {
    finish();
    held_ = code;
    held_change_ = change;
    holds_ = true;
  }
  /// Reports that some of the next characters are removed. Nothing records this at the very beginning, as in the
  /// reference.
  void remove(int characters) {
    if (holds_) held_change_ -= characters;
  }
  void finish() {
    if (holds_) put(held_, held_change_);
    holds_ = false;
  }

 private:
  TextRange origin(int change) const {
    if (from_.origins == nullptr) return {};
    if (change > 0) return at_ > 0 ? from_.origins[at_ - 1] : TextRange{from_.origin_begin, from_.origin_begin};
    return at_ < from_.text.size() ? from_.origins[at_] : TextRange{from_.origin_begin, from_.origin_begin};
  }

  const TextView& from_;
  AlignedText& to_;
  size_t at_ = 0;
  char32_t held_ = 0;
  int held_change_ = 0;
  bool holds_ = false;
};

}  // namespace llmtrain
