// Unicode normalization forms as in the tokenizers library, from its tables. The tables are part of the sources, since
// a text must give the same tokens whatever Unicode version a library of the machine has.

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <unordered_map>
#include <vector>

#include "text/pipeline/normalizer.hpp"

namespace llmtrain {
namespace {

struct ClassRun {
  char32_t first, last;
  uint8_t combining_class;
};
/// Code points whose decompositions have this many characters each, which follow one another in a list.
struct FormRun {
  char32_t first, last;
  uint32_t characters;
};
/// A code point that decomposes into two, and composes again unless it is one of `uncomposed`.
struct CanonicalPair {
  char32_t code, first, second;
};

#include "text/pipeline/normalization.inc"

constexpr char32_t hangul_base = 0xAC00, lead_base = 0x1100, vowel_base = 0x1161, tail_base = 0x11A7;
constexpr char32_t leads = 19, vowels = 21, tails = 28, syllables = leads * vowels * tails;

/// Properties of a code point; most have none.
struct Entry {
  uint16_t canonical = 0;   // index + 1
  uint16_t compatible = 0;  // index + 1
  uint8_t combining_class = 0;
  bool follows = false;  // can compose with the character before it
};

class Tables {
 public:
  static const Tables& get() {
    static const Tables tables;
    return tables;
  }

  /// Canonical decomposition: first and second, or first alone if second is 0.
  struct Canonical {
    char32_t first, second;
    bool composes;
  };

  const Entry& at(char32_t c) const { return pages_[page_of_[c >> 8]][c & 255]; }
  const Canonical& canonical(const Entry& entry) const { return canonical_[entry.canonical - 1]; }
  /// Full compatibility decomposition.
  std::span<const char32_t> compatible(const Entry& entry) const { return compatible_[entry.compatible - 1]; }
  char32_t compose(char32_t a, char32_t b) const {
    if (a >= lead_base && a < lead_base + leads && b >= vowel_base && b < vowel_base + vowels) {
      return hangul_base + ((a - lead_base) * vowels + (b - vowel_base)) * tails;
    }
    if (a >= hangul_base && a < hangul_base + syllables && (a - hangul_base) % tails == 0 && b > tail_base &&
        b < tail_base + tails) {
      return a + (b - tail_base);
    }
    const auto found = composites_.find(uint64_t{a} << 32 | b);
    return found == composites_.end() ? 0 : found->second;
  }

 private:
  Tables() : pages_(1) {
    for (const ClassRun& run : combining_classes) {
      for (char32_t c = run.first; c <= run.last; ++c) edit(c).combining_class = run.combining_class;
    }
    const char32_t* characters = canonical_characters;
    for (const FormRun& run : canonical_runs) {
      for (char32_t c = run.first; c <= run.last; ++c) add(c, {*characters++, 0, false});
    }
    for (const CanonicalPair& pair : canonical_pairs) {
      const bool composes = std::ranges::find(uncomposed, pair.code) == std::end(uncomposed);
      add(pair.code, {pair.first, pair.second, composes});
      if (!composes) continue;
      composites_[uint64_t{pair.first} << 32 | pair.second] = pair.code;
      edit(pair.second).follows = true;
    }
    characters = compatible_characters;
    for (const FormRun& run : compatible_runs) {
      for (char32_t c = run.first; c <= run.last; ++c, characters += run.characters) {
        compatible_.emplace_back(characters, run.characters);
        edit(c).compatible = static_cast<uint16_t>(compatible_.size());
      }
    }
    for (char32_t c = vowel_base; c < vowel_base + vowels; ++c) edit(c).follows = true;
    for (char32_t c = tail_base + 1; c < tail_base + tails; ++c) edit(c).follows = true;
  }
  void add(char32_t c, const Canonical& canonical) {
    canonical_.push_back(canonical);
    edit(c).canonical = static_cast<uint16_t>(canonical_.size());
  }
  Entry& edit(char32_t c) {
    uint16_t& page = page_of_[c >> 8];
    if (page == 0) {  // page of code points without properties
      page = static_cast<uint16_t>(pages_.size());
      pages_.emplace_back();
    }
    return pages_[page][c & 255];
  }

  std::array<uint16_t, 0x1100> page_of_{};
  std::vector<std::array<Entry, 256>> pages_;
  std::unordered_map<uint64_t, char32_t> composites_;
  std::vector<Canonical> canonical_;
  std::vector<std::span<const char32_t>> compatible_;
};

struct Item {
  char32_t code;
  int change;  // in the format of CharacterRewriter
  uint8_t combining_class;
};

/// Decomposed characters; those between two of class 0 are in the order of their classes.
class Decomposer {
 public:
  Decomposer(bool compatible, std::vector<Item>& items) : compatible_(compatible), items_(items) {}

  void add(char32_t c) {
    first_ = true;
    decompose(c);
  }
  void finish() { sort_pending(); }

 private:
  void decompose(char32_t c) {
    if (c >= hangul_base && c < hangul_base + syllables) {
      const char32_t index = c - hangul_base;
      push(lead_base + index / (vowels * tails));
      push(vowel_base + index % (vowels * tails) / tails);
      if (index % tails != 0) push(tail_base + index % tails);
      return;
    }
    const Entry& entry = tables_.at(c);
    if (compatible_ && entry.compatible != 0) {
      for (const char32_t character : tables_.compatible(entry)) push(character);
    } else if (entry.canonical != 0) {
      const Tables::Canonical& pair = tables_.canonical(entry);
      decompose(pair.first);  // the tables contain no cycles
      if (pair.second != 0) decompose(pair.second);
    } else {
      push(c);
    }
  }
  void push(char32_t c) {
    const uint8_t combining_class = tables_.at(c).combining_class;
    if (combining_class == 0) sort_pending();
    items_.push_back({c, first_ ? 0 : 1, combining_class});
    first_ = false;
    if (combining_class == 0) sorted_ = items_.size();
  }
  void sort_pending() {
    std::stable_sort(items_.begin() + static_cast<std::ptrdiff_t>(sorted_), items_.end(),
                     [](const Item& a, const Item& b) { return a.combining_class < b.combining_class; });
    sorted_ = items_.size();
  }

  const Tables& tables_ = Tables::get();
  bool compatible_;
  std::vector<Item>& items_;
  size_t sorted_ = 0;  // items before it are in order
  bool first_ = true;
};

/// Composes in place: every character joins the last one of class 0 before it unless a character of the same or a
/// higher class is between them.
void compose(std::vector<Item>& items) {
  const Tables& tables = Tables::get();
  size_t out = 0, starter = SIZE_MAX;
  int blocking = -1;  // class of the characters between the starter and the next character
  for (const Item item : items) {
    if (starter != SIZE_MAX && blocking < static_cast<int>(item.combining_class)) {
      const char32_t whole = tables.compose(items[starter].code, item.code);
      if (whole != 0) {
        items[starter].code = whole;
        items[starter].change += item.change - 1;
        continue;
      }
    }
    if (item.combining_class == 0) {
      starter = out;
      blocking = -1;
    } else {
      blocking = item.combining_class;
    }
    items[out++] = item;
  }
  items.resize(out);
}

/// Returns true if a quick check shows that the text is in the form.
bool is_in_form(std::string_view text, NormalizationForm form) {
  const Tables& tables = Tables::get();
  const bool composed = form == NormalizationForm::nfc || form == NormalizationForm::nfkc;
  const bool compatible = form == NormalizationForm::nfkc || form == NormalizationForm::nfkd;
  for (size_t i = 0; i < text.size();) {
    if (static_cast<uint8_t>(text[i]) < 0x80) {
      ++i;
      continue;
    }
    const Character c = character_at(text, i);
    i += c.length;
    const Entry& entry = tables.at(c.code);
    if (entry.combining_class != 0 || (compatible && entry.compatible != 0)) return false;
    if (composed) {
      if (entry.follows || (entry.canonical != 0 && !tables.canonical(entry).composes)) return false;
    } else if (entry.canonical != 0 || (c.code >= hangul_base && c.code < hangul_base + syllables)) {
      return false;
    }
  }
  return true;
}

void write_form(const TextView& from, NormalizationForm form, AlignedText& to) {
  const bool composed = form == NormalizationForm::nfc || form == NormalizationForm::nfkc;
  const bool compatible = form == NormalizationForm::nfkc || form == NormalizationForm::nfkd;
  CharacterRewriter writer(from, to);
  std::vector<Item> items;
  // Normalizes character by character, one stretch at a time: nothing composes over the border before an ASCII
  // character.
  for (size_t i = 0; i < from.text.size();) {
    items.clear();
    Decomposer decomposer(compatible, items);
    do {
      const Character c = character_at(from.text, i);
      i += c.length;
      decomposer.add(c.code);
    } while (i < from.text.size() && (static_cast<uint8_t>(from.text[i]) >= 0x80));
    decomposer.finish();
    if (composed) compose(items);
    for (const Item& item : items) writer.put(item.code, item.change);
  }
}

class FormNormalizer final : public Normalizer {
 public:
  explicit FormNormalizer(NormalizationForm form) : form_(form) {}
  bool keeps(std::string_view text) const override { return is_in_form(text, form_); }
  void apply(const TextView& from, AlignedText& to) const override { write_form(from, form_, to); }
  bool is_segmentable() const override { return true; }

 private:
  NormalizationForm form_;
};

}  // namespace

std::unique_ptr<Normalizer> make_form_normalizer(NormalizationForm form) {
  return std::make_unique<FormNormalizer>(form);
}

}  // namespace llmtrain
