// Porter's stemmer (Porter 1980) in NLTK's variant: irregular words, -ies and -ied of short words, -y after consonants,
// -alli, -fulli and -logi, and short stems of a vowel and a consonant.

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "scores/ngrams.hpp"

namespace llmtrain {

namespace {

/// One flag for each letter. A y is a consonant at the beginning and after a vowel.
std::vector<bool> find_consonants(std::string_view word) {
  constexpr std::string_view vowels = "aeiou";
  std::vector<bool> consonants;
  for (size_t i = 0; i < word.size(); ++i) {
    const bool is_y = word[i] == 'y';
    consonants.push_back(is_y ? i == 0 || !consonants[i - 1] : vowels.find(word[i]) == std::string_view::npos);
  }
  return consonants;
}

/// Number of times that a consonant follows a vowel.
int measure(std::string_view stem) {
  const std::vector<bool> consonants = find_consonants(stem);
  int count = 0;
  for (size_t i = 1; i < stem.size(); ++i) count += consonants[i] && !consonants[i - 1] ? 1 : 0;
  return count;
}

bool has_measure(std::string_view stem) { return measure(stem) > 0; }
bool has_large_measure(std::string_view stem) { return measure(stem) > 1; }

bool ends_in_consonant(std::string_view word) { return !word.empty() && find_consonants(word).back(); }

bool ends_in_double_consonant(std::string_view word) {
  return word.size() >= 2 && word.back() == word[word.size() - 2] && ends_in_consonant(word);
}

/// Consonant, vowel, consonant other than w, x, y; or a whole word of a vowel and a consonant.
bool ends_in_short_syllable(std::string_view word) {
  const size_t n = word.size();
  if (n < 2) return false;
  const std::vector<bool> consonants = find_consonants(word);
  if (consonants[n - 2] || !consonants[n - 1]) return false;
  if (n == 2) return true;
  return consonants[n - 3] && std::string_view("wxy").find(word.back()) == std::string_view::npos;
}

std::string_view without(std::string_view word, size_t letters) { return word.substr(0, word.size() - letters); }

struct Rule {
  std::string_view suffix, replacement;
};

/// Applies the first rule whose suffix the word has, if the stem satisfies the condition.
void apply_rules(std::string& word, std::span<const Rule> rules, bool (*condition)(std::string_view stem)) {
  const auto rule = std::ranges::find_if(rules, [&](const Rule& r) { return word.ends_with(r.suffix); });
  if (rule == rules.end()) return;
  const std::string_view stem = without(word, rule->suffix.size());
  if (condition(stem)) word = std::string(stem).append(rule->replacement);
}

void strip_plural(std::string& word) {
  constexpr std::array rules = {Rule{"sses", "ss"}, Rule{"ies", "i"}, Rule{"ss", "ss"}, Rule{"s", ""}};
  if (word.size() == 4 && word.ends_with("ies")) {
    word.pop_back();
  } else {
    apply_rules(word, rules, [](std::string_view) { return true; });
  }
}

/// Step 1b: -eed, -ed, -ing.
void strip_past(std::string& word) {
  if (word.ends_with("ied")) {
    word.resize(word.size() - (word.size() == 4 ? 1 : 2));
    return;
  }
  if (word.ends_with("eed")) {
    if (has_measure(without(word, 3))) word.pop_back();
    return;
  }
  const size_t letters = word.ends_with("ed") ? 2 : word.ends_with("ing") ? 3 : 0;
  if (letters == 0) return;
  const std::vector<bool> consonants = find_consonants(without(word, letters));
  if (std::ranges::find(consonants, false) == consonants.end()) return;
  word.resize(word.size() - letters);
  const bool is_cut = word.ends_with("at") || word.ends_with("bl") || word.ends_with("iz");
  if (!is_cut && ends_in_double_consonant(word)) {
    if (std::string_view("lsz").find(word.back()) == std::string_view::npos) word.pop_back();
  } else if (is_cut || (measure(word) == 1 && ends_in_short_syllable(word))) {
    word += 'e';
  }
}

void replace_final_y(std::string& word) {
  if (word.size() > 2 && word.ends_with('y') && ends_in_consonant(without(word, 1))) word.back() = 'i';
}

void strip_double_suffix(std::string& word) {
  constexpr std::array rules = {Rule{"ational", "ate"}, Rule{"tional", "tion"}, Rule{"enci", "ence"},
                                Rule{"anci", "ance"},   Rule{"izer", "ize"},    Rule{"bli", "ble"},
                                Rule{"alli", "al"},     Rule{"entli", "ent"},   Rule{"eli", "e"},
                                Rule{"ousli", "ous"},   Rule{"ization", "ize"}, Rule{"ation", "ate"},
                                Rule{"ator", "ate"},    Rule{"alism", "al"},    Rule{"iveness", "ive"},
                                Rule{"fulness", "ful"}, Rule{"ousness", "ous"}, Rule{"aliti", "al"},
                                Rule{"iviti", "ive"},   Rule{"biliti", "ble"},  Rule{"fulli", "ful"}};
  if (word.ends_with("alli") && has_measure(without(word, 4))) word.resize(word.size() - 2);
  if (word.ends_with("logi")) {
    if (has_measure(without(word, 3))) word.pop_back();
  } else {
    apply_rules(word, rules, has_measure);
  }
}

void strip_suffix(std::string& word) {
  constexpr std::array rules = {Rule{"icate", "ic"}, Rule{"ative", ""}, Rule{"alize", "al"}, Rule{"iciti", "ic"},
                                Rule{"ical", "ic"},  Rule{"ful", ""},   Rule{"ness", ""}};
  apply_rules(word, rules, has_measure);
}

void strip_last_suffix(std::string& word) {
  constexpr std::array rules = {Rule{"al", ""},    Rule{"ance", ""}, Rule{"ence", ""}, Rule{"er", ""},
                                Rule{"ic", ""},    Rule{"able", ""}, Rule{"ible", ""}, Rule{"ant", ""},
                                Rule{"ement", ""}, Rule{"ment", ""}, Rule{"ent", ""},  Rule{"ion", ""},
                                Rule{"ou", ""},    Rule{"ism", ""},  Rule{"ate", ""},  Rule{"iti", ""},
                                Rule{"ous", ""},   Rule{"ive", ""},  Rule{"ize", ""}};
  if (word.ends_with("ion") && !word.ends_with("sion") && !word.ends_with("tion")) return;
  apply_rules(word, rules, has_large_measure);
}

void strip_final_e(std::string& word) {
  if (!word.ends_with('e')) return;
  const std::string_view stem = without(word, 1);
  const int m = measure(stem);
  if (m > 1 || (m == 1 && !ends_in_short_syllable(stem))) word.pop_back();
}

}  // namespace

std::string porter_stem(std::string word) {
  using Irregular = std::pair<std::string_view, std::string_view>;
  constexpr std::array irregular = {
      Irregular{"sky", "sky"},        Irregular{"skies", "sky"},        Irregular{"dying", "die"},
      Irregular{"lying", "lie"},      Irregular{"tying", "tie"},        Irregular{"news", "news"},
      Irregular{"innings", "inning"}, Irregular{"inning", "inning"},    Irregular{"outings", "outing"},
      Irregular{"outing", "outing"},  Irregular{"cannings", "canning"}, Irregular{"canning", "canning"},
      Irregular{"howe", "howe"},      Irregular{"proceed", "proceed"},  Irregular{"exceed", "exceed"},
      Irregular{"succeed", "succeed"}};
  const auto found = std::ranges::find(irregular, word, &Irregular::first);
  if (found != irregular.end()) return std::string(found->second);
  if (word.size() <= 2) return word;
  strip_plural(word);
  strip_past(word);
  replace_final_y(word);
  strip_double_suffix(word);
  strip_suffix(word);
  strip_last_suffix(word);
  strip_final_e(word);
  if (word.ends_with("ll") && has_large_measure(without(word, 1))) word.pop_back();
  return word;
}

}  // namespace llmtrain
