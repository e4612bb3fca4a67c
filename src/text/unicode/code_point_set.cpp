#include "text/unicode/code_point_set.hpp"

#include <algorithm>
#include <array>

#include "text/unicode/character_sets.hpp"
#include "text/unicode/code_points.hpp"
#include "text/unicode/unicode.hpp"

namespace llmtrain {
namespace {

constexpr char32_t first_surrogate = 0xD800, last_surrogate = 0xDFFF;

template <class Is>
CodePointSet set_of(const Is& is) {
  CodePointSet set;
  for (char32_t c = 0; c < code_point_limit; ++c) {
    if (c == first_surrogate) c = last_surrogate + 1;
    if (!is(c)) continue;
    const char32_t first = c;
    while (c + 1 < code_point_limit && c + 1 != first_surrogate && is(c + 1)) ++c;
    set.add(first, c);
  }
  set.normalize();
  return set;
}

struct CategoryName {
  std::string_view brief, name;
  uint32_t categories;  ///< one bit each
};
constexpr uint32_t bits(Category first, Category last) {
  return (2U << static_cast<unsigned>(last)) - (1U << static_cast<unsigned>(first));
}
constexpr uint32_t bit(Category one) { return bits(one, one); }

using enum Category;
constexpr std::array<CategoryName, 40> categories = {{
    {"L", "letter", bits(Lu, Lo)},         {"Lu", "uppercaseletter", bit(Lu)},  {"Ll", "lowercaseletter", bit(Ll)},
    {"Lt", "titlecaseletter", bit(Lt)},    {"Lm", "modifierletter", bit(Lm)},   {"Lo", "otherletter", bit(Lo)},
    {"LC", "casedletter", bits(Lu, Lt)},   {"M", "mark", bits(Mn, Me)},         {"M", "combiningmark", bits(Mn, Me)},
    {"Mn", "nonspacingmark", bit(Mn)},     {"Mc", "spacingmark", bit(Mc)},      {"Me", "enclosingmark", bit(Me)},
    {"N", "number", bits(Nd, No)},         {"Nd", "decimalnumber", bit(Nd)},    {"Nl", "letternumber", bit(Nl)},
    {"No", "othernumber", bit(No)},        {"P", "punctuation", bits(Pc, Po)},  {"Pc", "connectorpunctuation", bit(Pc)},
    {"Pd", "dashpunctuation", bit(Pd)},    {"Ps", "openpunctuation", bit(Ps)},  {"Pe", "closepunctuation", bit(Pe)},
    {"Pi", "initialpunctuation", bit(Pi)}, {"Pf", "finalpunctuation", bit(Pf)}, {"Po", "otherpunctuation", bit(Po)},
    {"S", "symbol", bits(Sm, So)},         {"Sm", "mathsymbol", bit(Sm)},       {"Sc", "currencysymbol", bit(Sc)},
    {"Sk", "modifiersymbol", bit(Sk)},     {"So", "othersymbol", bit(So)},      {"Z", "separator", bits(Zs, Zp)},
    {"Zs", "spaceseparator", bit(Zs)},     {"Zl", "lineseparator", bit(Zl)},    {"Zp", "paragraphseparator", bit(Zp)},
    {"C", "other", bits(Cc, Cn)},          {"Cc", "control", bit(Cc)},          {"Cf", "format", bit(Cf)},
    {"Co", "privateuse", bit(Co)},         {"Cn", "unassigned", bit(Cn)},       {"Nd", "digit", bit(Nd)},
    {"P", "punct", bits(Pc, Po)},
}};

struct ScriptRange {
  std::string_view script;  ///< empty: the one before
  char32_t first, last;
};
constexpr ScriptRange script_ranges[] = {
#include "text/unicode/regex_scripts.inc"
};

/// Compares names like Oniguruma: without case, spaces, '-' and '_'.
std::string plain(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c != ' ' && c != '-' && c != '_') out += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  }
  return out;
}

/// Oniguruma's \w: letters and similar characters, marks, decimal and letter numbers, connectors.
bool is_word(char32_t c) { return is_word_character(c) && c != 0x200C && c != 0x200D; }
/// Outside of brackets the superscripts and fractions of Latin-1 are word characters, too.
bool is_bare_word(char32_t c) { return c == 0xB2 || c == 0xB3 || c == 0xB9 || (c >= 0xBC && c <= 0xBE) || is_word(c); }

CodePointSet listed_set(std::string_view wanted) {
  CodePointSet set;
  bool is_wanted = false;
  for (const ScriptRange& range : script_ranges) {
    if (!range.script.empty()) is_wanted = wanted == plain(range.script);
    if (is_wanted) set.add(range.first, range.last);
  }
  set.normalize();
  return set;
}

/// Characters of some categories, and those of a list.
CodePointSet categories_and(uint32_t wanted, std::string_view list) {
  CodePointSet set =
      set_of([&](char32_t c) { return (wanted >> static_cast<unsigned>(general_category(c)) & 1U) != 0; });
  set.add(listed_set(list));
  set.normalize();
  return set;
}

bool is_graphic(char32_t c) {
  const Category category = general_category(c);
  return category != Cc && category != Cn && !is_space(c);
}

CodePointSet ascii_set(std::initializer_list<CodePointSet::Range> ranges) {
  CodePointSet set;
  for (const auto& [first, last] : ranges) set.add(first, last);
  set.normalize();
  return set;
}

}  // namespace

void CodePointSet::normalize() {
  std::sort(ranges_.begin(), ranges_.end());
  std::vector<Range> joined;
  for (const auto& [first, last] : ranges_) {
    const bool touches = !joined.empty() && first <= joined.back().second + 1;
    if (touches) {
      joined.back().second = std::max(joined.back().second, last);
    } else {
      joined.emplace_back(first, last);
    }
  }
  ranges_ = std::move(joined);
}

CodePointSet CodePointSet::complement() const {
  CodePointSet out;
  const auto add_gap = [&](char32_t first, char32_t end) {  // adds [first, end) without surrogates
    if (first < std::min(end, first_surrogate)) out.add(first, std::min(end, first_surrogate) - 1);
    first = std::max<char32_t>(first, last_surrogate + 1);
    if (first < end) out.add(first, end - 1);
  };
  char32_t next = 0;
  for (const auto& [first, last] : ranges_) {
    add_gap(next, first);
    next = last + 1;
  }
  add_gap(next, code_point_limit);
  return out;
}

CodePointSet CodePointSet::without(const CodePointSet& other) const {
  CodePointSet gaps = complement();
  gaps.add(other);
  gaps.normalize();
  return gaps.complement();
}

std::optional<NamedSet> find_named_set(std::string_view name) {
  const std::string wanted = plain(name);
  for (const CategoryName& category : categories) {
    if (wanted != plain(category.brief) && wanted != category.name) continue;
    const auto is = [&](char32_t c) {
      return (category.categories >> static_cast<unsigned>(general_category(c)) & 1U) != 0;
    };
    return NamedSet{set_of(is), category.brief == "LC" ? "L&" : std::string(category.brief)};
  }
  if (wanted == "space" || wanted == "whitespace") return NamedSet{set_of(is_space), ""};
  if (wanted == "word") return NamedSet{set_of(is_word), "L"};
  if (name == bare_word_name) return NamedSet{set_of(is_bare_word), "L"};
  if (wanted == "any") return NamedSet{CodePointSet().complement(), ""};
  if (wanted == "ascii") return NamedSet{ascii_set({{0, 0x7F}}), ""};
  if (wanted == "xdigit") return NamedSet{ascii_set({{'0', '9'}, {'A', 'F'}, {'a', 'f'}}), ""};
  if (wanted == "cntrl") return NamedSet{set_of([](char32_t c) { return general_category(c) == Cc; }), ""};
  if (wanted == "blank") return NamedSet{set_of([](char32_t c) { return c == '\t' || general_category(c) == Zs; }), ""};
  constexpr uint32_t letters = bits(Lu, Lo) | bit(Nl);
  if (wanted == "alpha" || wanted == "alphabetic") {
    return NamedSet{categories_and(letters, "otheralphabetic"), "Alphabetic"};
  }
  if (wanted == "alnum") return NamedSet{categories_and(letters | bit(Nd), "otheralphabetic"), "Alphabetic"};
  if (wanted == "upper" || wanted == "uppercase") return NamedSet{categories_and(bit(Lu), "otheruppercase"), "Lu"};
  if (wanted == "lower" || wanted == "lowercase") return NamedSet{categories_and(bit(Ll), "otherlowercase"), "Ll"};
  if (wanted == "graph") return NamedSet{set_of(is_graphic), ""};
  if (wanted == "print") {
    return NamedSet{set_of([](char32_t c) { return is_graphic(c) || general_category(c) == Zs; }), ""};
  }
  if (name == posix_punct_name) {
    const auto is = [](char32_t c) { return is_punctuation(c) || is_symbol(c); };
    return NamedSet{set_of(is), "P"};
  }
  CodePointSet listed = listed_set(wanted);
  if (listed.empty()) return std::nullopt;
  return NamedSet{std::move(listed), ""};
}

bool is_name_of_case(std::string_view name) {
  constexpr std::array<std::string_view, 14> names = {
      "lu",          "ll",    "lt",        "lc",    "uppercaseletter", "lowercaseletter", "titlecaseletter",
      "casedletter", "upper", "uppercase", "lower", "lowercase",       "otheruppercase",  "otherlowercase"};
  return std::ranges::find(names, plain(name)) != names.end();
}

}  // namespace llmtrain
