#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "text/pipeline/byte_level.hpp"
#include "text/pipeline/matches.hpp"
#include "text/unicode/character_sets.hpp"

namespace llmtrain {
namespace {

bool is_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

class Lowercase final : public Normalizer {
 public:
  bool keeps(std::string_view text) const override {
    return is_ascii(text) && std::ranges::none_of(text, [](char c) { return c >= 'A' && c <= 'Z'; });
  }
  void apply(const TextView& from, AlignedText& to) const override {
    CharacterRewriter writer(from, to);
    for (size_t i = 0; i < from.text.size();) {
      const Character c = character_at(from.text, i);
      i += c.length;
      writer.put(lowercase(c.code), 0);
      if (c.code == U'\u0130') writer.put(U'\u0307', 1);  // the only character that becomes two
    }
  }
  bool is_segmentable() const override { return true; }
};

/// Keeps the characters that a predicate accepts, each mapped by a function.
class FilterMap final : public Normalizer {
 public:
  using Keep = bool (*)(char32_t);
  using Map = char32_t (*)(char32_t);
  FilterMap(Keep keep, Map map, bool ascii_unchanged) : keep_(keep), map_(map), ascii_unchanged_(ascii_unchanged) {}

  bool keeps(std::string_view text) const override { return ascii_unchanged_ && is_ascii(text); }
  void apply(const TextView& from, AlignedText& to) const override {
    CharacterRewriter writer(from, to);
    char32_t last = 0;
    bool any = false;
    int removed = 0;
    for (size_t i = 0; i < from.text.size();) {
      const Character c = character_at(from.text, i);
      i += c.length;
      if (!keep_(c.code)) {
        ++removed;
        continue;
      }
      if (any) {
        writer.put(map_(last), -removed);
      } else {
        writer.skip(static_cast<size_t>(removed));
      }
      last = c.code;
      any = true;
      removed = 0;
    }
    if (any) writer.put(map_(last), -removed);
  }

 private:
  Keep keep_;
  Map map_;
  bool ascii_unchanged_;
};

char32_t same(char32_t c) { return c; }

class Strip final : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  bool keeps(std::string_view text) const override {
    if (text.empty()) return true;
    const bool at_left = left_ && is_white_space(character_at(text, 0).code);
    return !at_left && !(right_ && is_white_space(character_before(text, text.size()).code));
  }
  void apply(const TextView& from, AlignedText& to) const override {
    size_t begin = 0, end = from.text.size();
    while (left_ && begin < end && is_white_space(character_at(from.text, begin).code)) {
      begin += character_at(from.text, begin).length;
    }
    while (right_ && end > begin && is_white_space(character_before(from.text, end).code)) {
      end -= character_before(from.text, end).length;
    }
    to.append(from.range(begin, end));
  }

 private:
  bool left_, right_;
};

class Prepend final : public Normalizer {
 public:
  Prepend(std::string prefix, bool unless_there) : prefix_(std::move(prefix)), unless_there_(unless_there) {}
  bool keeps(std::string_view text) const override {
    return text.empty() || prefix_.empty() || (unless_there_ && text.starts_with(prefix_));
  }
  void apply(const TextView& from, AlignedText& to) const override {
    to.append(prefix_, from.origins != nullptr ? from.origins[0] : TextRange{});
    to.append(from);
  }
  bool is_segmentable() const override { return true; }
  bool only_at_start() const override { return true; }

 private:
  std::string prefix_;
  bool unless_there_;
};

/// Replaces matches, see matches.hpp; a text without `needed` has none.
template <class ForMatches>
class Replace final : public Normalizer {
 public:
  Replace(ForMatches for_matches, std::string content, std::string needed, bool is_segmentable)
      : for_matches_(std::move(for_matches)),
        content_(std::move(content)),
        needed_(std::move(needed)),
        is_segmentable_(is_segmentable) {}
  bool keeps(std::string_view text) const override {
    return text.empty() || text.find(needed_) == std::string_view::npos;
  }
  void apply(const TextView& from, AlignedText& to) const override {
    size_t done = 0;
    for_matches_(from.text, [&](size_t begin, size_t end) {
      to.append(from.range(done, begin));
      to.append(content_, from.origins != nullptr ? from.origins[end - 1] : TextRange{});
      done = end;
    });
    to.append(from.range(done, from.text.size()));
  }
  bool is_segmentable() const override { return is_segmentable_; }

 private:
  ForMatches for_matches_;
  std::string content_, needed_;
  bool is_segmentable_;
};

class ByteLevelText final : public Normalizer {
 public:
  bool keeps(std::string_view text) const override {
    return std::ranges::all_of(text, [](char c) { return c > ' ' && c < 0x7F; });
  }
  void apply(const TextView& from, AlignedText& to) const override {
    const auto& characters = byte_level_characters();
    for (size_t i = 0; i < from.text.size(); ++i) {
      to.append(char32_t{characters[static_cast<uint8_t>(from.text[i])]},
                from.origins != nullptr ? from.origins[i] : TextRange{});
    }
  }
  bool is_segmentable() const override { return true; }
};

class ChineseSpaces final : public Normalizer {
 public:
  bool keeps(std::string_view text) const override { return is_ascii(text); }
  void apply(const TextView& from, AlignedText& to) const override {
    CharacterRewriter writer(from, to);
    for (size_t i = 0; i < from.text.size();) {
      const Character c = character_at(from.text, i);
      i += c.length;
      if (is_chinese(c.code)) {
        writer.put(U' ', 0);
        writer.put(c.code, 1);
        writer.put(U' ', 1);
      } else {
        writer.put(c.code, 0);
      }
    }
  }
  bool is_segmentable() const override { return true; }

 private:
  /// Returns true for the blocks of unified ideographs that BERT knows.
  static bool is_chinese(char32_t c) {
    const auto in = [c](char32_t first, char32_t last) { return c >= first && c <= last; };
    return in(0x4E00, 0x9FFF) || in(0x3400, 0x4DBF) || in(0x20000, 0x2A6DF) || in(0x2A700, 0x2B73F) ||
           in(0x2B740, 0x2B81F) || in(0x2B920, 0x2CEAF) || in(0xF900, 0xFAFF) || in(0x2F800, 0x2FA1F);
  }
};

bool kept_by_nmt(char32_t c) {
  return !((c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F);
}

char32_t nmt_space(char32_t c) {
  constexpr std::u32string_view spaces = U"\t\n\f\r\u1680\u200B\u200C\u200D\u200E\u200F\u2028\u2029\u2581\uFEFF\uFFFD";
  return spaces.find(c) != std::u32string_view::npos ? U' ' : c;
}

bool kept_by_bert(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return true;
  return c != 0 && c != 0xFFFD && !is_bert_control(c);
}
char32_t bert_space(char32_t c) { return is_white_space(c) ? U' ' : c; }
bool is_no_accent(char32_t c) { return !is_nonspacing_mark(c); }
bool is_no_combining_mark(char32_t c) { return !is_combining_mark(c); }

}  // namespace

TextView normalize(const std::vector<std::unique_ptr<Normalizer>>& steps, const TextView& from, bool continues,
                   AlignedText& to, AlignedText& spare) {
  TextView current = from;
  AlignedText* next = &to;
  AlignedText* other = &spare;
  for (const auto& step : steps) {
    if ((continues && step->only_at_start()) || step->keeps(current.text)) continue;
    next->reset(from);
    step->apply(current, *next);
    current = next->view();
    std::swap(next, other);
  }
  return current;
}

std::unique_ptr<Normalizer> make_lowercase_normalizer() { return std::make_unique<Lowercase>(); }
std::unique_ptr<Normalizer> make_strip_normalizer(bool left, bool right) {
  return std::make_unique<Strip>(left, right);
}
std::unique_ptr<Normalizer> make_strip_accents_normalizer() {
  return std::make_unique<FilterMap>(is_no_combining_mark, same, true);
}
std::unique_ptr<Normalizer> make_prepend_normalizer(std::string prefix, bool unless_there) {
  return std::make_unique<Prepend>(std::move(prefix), unless_there);
}
std::unique_ptr<Normalizer> make_replace_normalizer(const std::string& pattern, std::string content) {
  const bool is_segmentable = !content.empty() && (pattern == " " || pattern.find(' ') == std::string::npos);
  return std::make_unique<Replace<decltype(literal_matches(pattern))>>(literal_matches(pattern), std::move(content),
                                                                       pattern, is_segmentable);
}
std::unique_ptr<Normalizer> make_regex_replace_normalizer(const std::string& regex, std::string content,
                                                          const std::string& place) {
  if (const RegexMatch match = find_replace_regex(regex)) {
    return std::make_unique<Replace<decltype(native_matches(match))>>(native_matches(match), std::move(content), "",
                                                                      false);
  }
  auto for_matches = [all = regex_matches(std::make_unique<Regex>(regex, place)), place](std::string_view text,
                                                                                         const auto& use) {
    all(text, [&](size_t begin, size_t end) {
      if (begin == end) {
        throw UserError(ExitCode::bad_content, place +
                                                   ": its regex matches an empty text; the replacement "
                                                   "then depends on the version of the tokenizers package");
      }
      use(begin, end);
    });
  };
  return std::make_unique<Replace<decltype(for_matches)>>(std::move(for_matches), std::move(content), "", false);
}
std::unique_ptr<Normalizer> make_nmt_normalizer() { return std::make_unique<FilterMap>(kept_by_nmt, nmt_space, false); }
std::unique_ptr<Normalizer> make_byte_level_normalizer() { return std::make_unique<ByteLevelText>(); }

void add_bert_normalizers(const BertNormalization& options, std::vector<std::unique_ptr<Normalizer>>& steps) {
  if (options.clean_text) steps.push_back(std::make_unique<FilterMap>(kept_by_bert, bert_space, false));
  if (options.handle_chinese_chars) steps.push_back(std::make_unique<ChineseSpaces>());
  if (options.strip_accents) {
    steps.push_back(make_form_normalizer(NormalizationForm::nfd));
    steps.push_back(std::make_unique<FilterMap>(is_no_accent, same, true));
  }
  if (options.lowercase) steps.push_back(make_lowercase_normalizer());
}

RegexMatch find_replace_regex(std::string_view regex) {
  if (regex == " {2,}" || regex == "[ ]{2,}") {
    return [](std::string_view text, size_t i) {
      const size_t end = std::min(text.find_first_not_of(' ', i), text.size());
      return end >= i + 2 ? end : i;
    };
  }
  if (regex == "\xE2\x96\x81{2,}") {
    return [](std::string_view text, size_t i) {
      size_t end = i;
      while (text.substr(end).starts_with("\xE2\x96\x81")) end += 3;
      return end >= i + 6 ? end : i;
    };
  }
  if (regex == "\\s+" || regex == "\\s") {
    const bool one = regex == "\\s";
    const RegexMatch single = [](std::string_view text, size_t i) {
      const Character c = character_at(text, i);
      return is_white_space(c.code) ? i + c.length : i;
    };
    const RegexMatch run = [](std::string_view text, size_t i) {
      while (i < text.size() && is_white_space(character_at(text, i).code)) i += character_at(text, i).length;
      return i;
    };
    return one ? single : run;
  }
  if (regex == "\n") return [](std::string_view text, size_t i) { return text[i] == '\n' ? i + 1 : i; };
  if (regex == "[\r\n\t]" || regex == "[\\r\\n\\t]" || regex == "[\\n\\r\\t]" || regex == "[\n\r\t]") {
    return [](std::string_view text, size_t i) {
      return text[i] == '\n' || text[i] == '\r' || text[i] == '\t' ? i + 1 : i;
    };
  }
  return nullptr;
}

}  // namespace llmtrain
