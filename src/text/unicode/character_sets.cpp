#include "text/unicode/character_sets.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "text/unicode/characters.hpp"

namespace llmtrain {
namespace {

struct Range {
  char32_t first;
  char32_t last = 0;  ///< 0: one character
};
/// A case mapping: every step-th character from first to last moves by delta.
struct CaseRun {
  char32_t first, last;
  uint32_t step;
  int32_t delta;
};

#include "text/unicode/character_sets.inc"

/// Sets of all code points, in pages; equal pages are stored once.
class SetTable {
 public:
  SetTable() {
    std::vector<uint16_t> all(code_point_limit, 0);
    paint(all, white_space, character_set::white_space);
    paint(all, word_characters, character_set::word);
    paint(all, numeric_characters, character_set::numeric);
    paint(all, punctuation_characters, character_set::punctuation);
    paint(all, bert_controls, character_set::bert_control);
    paint(all, nonspacing_marks, character_set::nonspacing_mark);
    paint(all, combining_marks, character_set::combining_mark);
    paint(all, grapheme_control, character_set::grapheme_control);
    paint(all, grapheme_extend, character_set::grapheme_extend);
    paint(all, grapheme_spacingmark, character_set::grapheme_spacing_mark);
    paint(all, grapheme_prepend, character_set::grapheme_prepend);
    paint(all, pictographic, character_set::pictographic);
    for (size_t begin = 0; begin < all.size(); begin += 256) {
      Page page;
      std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(begin), 256, page.begin());
      const auto known = std::find(pages_.begin(), pages_.end(), page);
      page_of_[begin >> 8] = static_cast<uint16_t>(known - pages_.begin());
      if (known == pages_.end()) pages_.push_back(page);
    }
  }
  uint16_t at(char32_t c) const { return pages_[page_of_[c >> 8]][c & 255]; }

 private:
  using Page = std::array<uint16_t, 256>;
  template <size_t n>
  static void paint(std::vector<uint16_t>& all, const Range (&ranges)[n], uint16_t set) {
    for (const Range& range : ranges) {
      for (char32_t c = range.first; c <= std::max(range.first, range.last); ++c) all[c] |= set;
    }
  }

  std::array<uint16_t, 0x1100> page_of_{};
  std::vector<Page> pages_;
};

const SetTable& set_table() {
  static const SetTable table;
  return table;
}

constexpr uint16_t extends = character_set::grapheme_extend | character_set::grapheme_spacing_mark;

/// Hangul syllables: the combinations that have no border between them (L, V, T of conjoining jamo, LV and LVT
/// syllables).
enum class Hangul : uint8_t { none, lead, vowel, tail };
struct HangulKind {
  Hangul begin, end;  // first and last jamo
};
HangulKind hangul_kind(char32_t c) {
  if ((c >= 0x1100 && c <= 0x115F) || (c >= 0xA960 && c <= 0xA97C)) return {Hangul::lead, Hangul::lead};
  if ((c >= 0x1160 && c <= 0x11A7) || (c >= 0xD7B0 && c <= 0xD7C6)) return {Hangul::vowel, Hangul::vowel};
  if ((c >= 0x11A8 && c <= 0x11FF) || (c >= 0xD7CB && c <= 0xD7FB)) return {Hangul::tail, Hangul::tail};
  if (c >= 0xAC00 && c < 0xAC00 + 11172) return {Hangul::lead, (c - 0xAC00) % 28 == 0 ? Hangul::vowel : Hangul::tail};
  return {Hangul::none, Hangul::none};
}
bool joins_hangul(char32_t left, char32_t right) {
  const Hangul end = hangul_kind(left).end, begin = hangul_kind(right).begin;
  if (end == Hangul::lead) return begin == Hangul::lead || begin == Hangul::vowel;
  if (end == Hangul::vowel) return begin == Hangul::vowel || begin == Hangul::tail;
  return end == Hangul::tail && begin == Hangul::tail;
}
bool is_regional(char32_t c) { return c >= 0x1F1E6 && c <= 0x1F1FF; }

}  // namespace

uint16_t character_sets_of(char32_t c) { return set_table().at(c); }

char32_t lowercase(char32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + 32 : c;
  const auto* run = std::upper_bound(std::begin(case_runs), std::end(case_runs), c,
                                     [](char32_t value, const CaseRun& candidate) { return value < candidate.first; });
  // Runs of every second character can enclose others, at most the one before.
  for (int tries = 0; tries < 3 && run != std::begin(case_runs); ++tries) {
    --run;
    if (c <= run->last && (c - run->first) % run->step == 0) {
      return static_cast<char32_t>(static_cast<int32_t>(c) + run->delta);
    }
  }
  return c;
}

// Unicode annex 29. Its rule for Indic conjuncts is omitted: it joins clusters that are longer than those that the only
// caller treats as wholes.
size_t grapheme_end(std::string_view text, size_t i) {
  // The property has separate kinds for line ends.
  const auto stands_alone = [](char32_t code) {
    return code == '\r' || code == '\n' || is_in_set(code, character_set::grapheme_control);
  };
  Character last = character_at(text, i);
  i += last.length;
  if (last.code == '\r' && i < text.size() && text[i] == '\n') return i + 1;
  if (stands_alone(last.code)) return i;
  int regional = is_regional(last.code) ? 1 : 0;
  bool picture = is_in_set(last.code, character_set::pictographic);
  while (i < text.size()) {
    const Character next = character_at(text, i);
    const uint16_t sets = character_sets_of(next.code);
    const bool after_joiner = last.code == 0x200D;
    if ((sets & extends) != 0 || next.code == 0x200D) {
      picture = picture && (sets & character_set::grapheme_spacing_mark) == 0;
    } else if (is_in_set(last.code, character_set::grapheme_prepend) && !stands_alone(next.code)) {
      picture = (sets & character_set::pictographic) != 0;
    } else if (picture && after_joiner && (sets & character_set::pictographic) != 0) {
      picture = true;
    } else if (!joins_hangul(last.code, next.code) && !(regional == 1 && is_regional(next.code))) {
      return i;
    }
    regional = is_regional(next.code) ? regional + 1 : 0;
    last = next;
    i += next.length;
  }
  return i;
}

}  // namespace llmtrain
