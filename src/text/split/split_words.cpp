// Split patterns of whole tokenizers: GPT-2's, those that follow cl100k, DeepSeek V3's.

#include "text/split/split_patterns.hpp"

namespace llmtrain {
namespace {

using namespace char_class;
using Scanner = SplitScanner;

class Gpt2Split final : public SplitPattern {
 public:
  Gpt2Split(std::string_view name, std::string_view regex) : SplitPattern(name, regex) {}

 private:
  size_t match_end(const Scanner& text, size_t i) const override {
    const size_t contraction = text.contraction_end(i, Fold::none);
    if (contraction > i) return contraction;
    const size_t word = text.is(i, ' ') ? i + 1 : i;
    if (!text.ends(word)) {
      const uint16_t kind = text.at(word).classes;
      constexpr uint16_t symbols = any & ~(space | letter | number);
      if ((kind & letter) != 0) return text.run_end(word, letter);
      if (kind == number) return text.run_end(word, number);
      if ((kind & symbols) != 0) return text.run_end(word, symbols);
    }
    return text.space_end(i, false);
  }
};

class WordSplitPattern final : public SplitPattern {
 public:
  WordSplitPattern(std::string_view name, std::string_view regex, const WordSplit& how)
      : SplitPattern(name, regex),
        how_(how),
        letters_(how.letters == WordSplit::Letters::with_marks ? letter | mark : letter),
        symbols_(any & ~(space | number | letters_)),
        tail_(how.slash_in_tail ? newline | slash : newline) {}

 private:
  size_t match_end(const Scanner& text, size_t i) const override {
    if (how_.contractions == WordSplit::Contractions::first) {
      const size_t contraction = text.contraction_end(i, how_.fold);
      if (contraction > i) return contraction;
    }
    const size_t word = word_end(text, i);
    if (word > i) return word;
    const size_t digits = text.run_end(i, number, how_.max_digits);
    if (digits > i) return digits;
    const size_t begin = text.is(i, ' ') ? i + 1 : i;
    const size_t run = text.run_end(begin, symbols_);
    return run > begin ? text.run_end(run, tail_) : text.space_end(i, true);
  }

  size_t word_end(const Scanner& text, size_t i) const {
    const Scanner::Character first = text.at(i);
    const bool may_lead = (first.classes & (newline | letter | number)) == 0;
    const size_t behind = i + first.length;
    if (how_.letters != WordSplit::Letters::cased) {
      // the first character is not a letter: the run continues after it or, if it is a mark, begins with it
      if ((first.classes & letters_) != 0) return text.run_end(behind, letters_);
      const size_t end = may_lead ? text.run_end(behind, letters_) : i;
      return end > behind ? end : i;
    }
    size_t end = i;
    for (const bool lowercase_needed : {true, false}) {
      if (may_lead) end = cased_end(text, behind, lowercase_needed);
      if (!may_lead || end == behind) {
        end = cased_end(text, i, lowercase_needed);
        if (end == i) continue;
      }
      return how_.contractions == WordSplit::Contractions::after_word ? text.contraction_end(end, how_.fold) : end;
    }
    return i;
  }

  /// Matches U*L+ or U+L*, where U are capitals, L small letters, and both contain letters without case and marks;
  /// returns i if nothing matches.
  static size_t cased_end(const Scanner& text, size_t i, bool lowercase_needed) {
    constexpr uint16_t both = other_letter | mark;
    size_t end = i, shared_end = i;  // end of the last character that is in both
    while (!text.ends(end)) {
      const Scanner::Character c = text.at(end);
      if ((c.classes & (upper | both)) == 0) break;
      end += c.length;
      if ((c.classes & both) != 0) shared_end = end;
    }
    const size_t small_end = text.run_end(end, lower | both);
    if (small_end > end) return small_end;
    return lowercase_needed ? shared_end : end;
  }

  WordSplit how_;
  uint16_t letters_;
  uint16_t symbols_;
  uint16_t tail_;
};

bool is_ascii_letter(char32_t c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }

class DeepSeekSplit final : public SplitPattern {
 public:
  DeepSeekSplit(std::string_view name, std::string_view regex) : SplitPattern(name, regex) {}

 private:
  size_t match_end(const Scanner& text, size_t i) const override {
    const Scanner::Character first = text.at(i);
    const size_t behind = i + first.length;
    constexpr uint16_t signs = punctuation | symbol;
    if (first.code < 0x80 && (first.classes & signs) != 0) {
      size_t end = behind;
      while (!text.ends(end) && is_ascii_letter(static_cast<uint8_t>(text.text()[end]))) ++end;
      if (end > behind) return end;
    }
    constexpr uint16_t letters = letter | mark;
    if ((first.classes & (newline | letter | signs)) == 0) {
      const size_t end = text.run_end(behind, letters);
      if (end > behind) return end;
    }
    if ((first.classes & letters) != 0) return text.run_end(behind, letters);
    const size_t begin = first.code == ' ' ? behind : i;
    const size_t run = text.run_end(begin, signs);
    return run > begin ? text.run_end(run, newline) : text.space_end(i, true);
  }
};

}  // namespace

std::unique_ptr<SplitPattern> make_gpt2_split(std::string_view name, std::string_view regex) {
  return std::make_unique<Gpt2Split>(name, regex);
}
std::unique_ptr<SplitPattern> make_word_split(std::string_view name, std::string_view regex, const WordSplit& how) {
  return std::make_unique<WordSplitPattern>(name, regex, how);
}
std::unique_ptr<SplitPattern> make_deepseek_split(std::string_view name, std::string_view regex) {
  return std::make_unique<DeepSeekSplit>(name, regex);
}

}  // namespace llmtrain
