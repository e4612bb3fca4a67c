#include <memory>
#include <string>

#include "text/split/pretokenize.hpp"
#include "text/split/split_patterns.hpp"

namespace llmtrain {
namespace {

using List = std::vector<std::unique_ptr<SplitPattern>>;
using Letters = WordSplit::Letters;
using Contractions = WordSplit::Contractions;

constexpr std::string_view deepseek_llm_letters =
    "A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF\u0370-\u0373\u0376"
    "\u0377\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1\u03A3-\u03F5\u03F7-\u0481\u048A-\u052F\u0531-"
    "\u0556\u10A0-\u10C5\u13A0-\u13F5\u13F8-\u13FD\u1C90-\u1CBA\u1CBD-\u1CBF\u1D00-\u1D2B\u1D6B-\u1D77\u1D79-\u1D9A"
    "\u1E00-\u1F15\u1F18-\u1F1D\u1F20-\u1F45\u1F48-\u1F4D\u1F50-\u1F57\u1F59\u1F5B\u1F5D\u1F5F-\u1F7D\u1F80-\u1FB4"
    "\u1FB6-\u1FBC\u1FBE\u1FC2-\u1FC4\u1FC6-\u1FCC\u1FD0-\u1FD3\u1FD6-\u1FDB\u1FE0-\u1FEC\u1FF2-\u1FF4\u1FF6-\u1FFC"
    "\u2102\u2107\u210A-\u2113\u2115\u2119-\u211D\u2124\u2126\u2128\u212A-\u212D\u212F-\u2134\u2139\u213C-\u213F"
    "\u2145-\u2149\u214E\u2183\u2184\u2C00-\u2C7B\u2C7E-\u2CE4\u2CEB-\u2CEE\u2CF2\u2CF3\uA640-\uA66D\uA680-\uA69B"
    "\uA722-\uA76F\uA771-\uA787\uA78B-\uA78E\uAB70-\uABBF\uFB00-\uFB06\uFB13-\uFB17\uFF21-\uFF3A\uFF41-\uFF5A"
    "\U00010400-\U0001044F\U000104B0-\U000104D3\U000104D8-\U000104FB\U00010C80-\U00010CB2\U00010CC0-\U00010CF2"
    "\U000118A0-\U000118DF\U0001E900-\U0001E943";
constexpr std::string_view deepseek_llm_signs = "!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3000-\u3002";
constexpr std::string_view cjk_and_hangul = "\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF";
constexpr std::string_view cjk_and_kana = "\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF";

/// Returns before + "[" + list + "]+", kept for the life of the program.
std::string_view bracket(std::string_view before, std::string_view list) {
  static std::vector<std::unique_ptr<std::string>> texts;
  texts.push_back(std::make_unique<std::string>(std::string(before) + "[" + std::string(list) + "]+"));
  return *texts.back();
}

void add_gpt2(List& list) {
  const auto add = [&](std::string_view regex) { list.push_back(make_gpt2_split("gpt2", regex)); };
  add(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)");
  add(R"('s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)");
  add(R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)");
  add(R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)");
}

void add_words(List& list) {
  const auto add = [&](std::string_view name, std::string_view regex, const WordSplit& how) {
    list.push_back(make_word_split(name, regex, how));
  };
  add("llama3",  // also cl100k, GPT-4's
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      {});
  add("dbrx",
      R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      {.fold = Fold::ascii});
  add("qwen2",
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      {.max_digits = 1});
  add("qwen3.5",
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      {.letters = Letters::with_marks, .max_digits = 1});
  add("o200k",  // GPT-4o, Llama 4
      R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      {.letters = Letters::cased, .contractions = Contractions::after_word, .slash_in_tail = true});
  add("tekken",  // Mistral NeMo and later
      R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      {.letters = Letters::cased, .contractions = Contractions::none, .max_digits = 1, .slash_in_tail = true});
}

void add_deepseek(List& list) {
  list.push_back(make_deepseek_split(
      "deepseek3",
      R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"));
  const auto add = [&](std::string_view name, std::string_view regex, const RunSplit& how) {
    list.push_back(make_run_split(name, regex, how));
  };
  add("CJK and kana", bracket("", cjk_and_kana), {.list = cjk_and_kana});
  add("CJK and Hangul", bracket("", cjk_and_hangul), {.list = cjk_and_hangul});
  add("line end", R"([\r\n])", {.classes = char_class::newline, .most = 1});
  add("letters", R"(\s?\p{L}+)", {.classes = char_class::letter, .before = char_class::space});
  add("punctuation", R"(\s?\p{P}+)", {.classes = char_class::punctuation, .before = char_class::space});
  add("letters of DeepSeek LLM", bracket(R"(\s?)", deepseek_llm_letters),
      {.list = deepseek_llm_letters, .before = char_class::space});
  add("signs of DeepSeek LLM", bracket(R"(\s?)", deepseek_llm_signs),
      {.list = deepseek_llm_signs, .before = char_class::space});
  list.push_back(make_trailing_space_split("spaces at the end", R"(\s+$)"));
}

void add_numbers(List& list) {
  const auto add = [&](std::string_view name, std::string_view regex, const RunSplit& how) {
    list.push_back(make_run_split(name, regex, how));
  };
  add("digits", R"(\p{N})", {.classes = char_class::number, .most = 1});
  add("numbers", R"(\p{N}+)", {.classes = char_class::number});
  add("digits by three", R"(\p{N}{1,3})", {.classes = char_class::number, .most = 3});
  add("ASCII digits by three", "[0-9][0-9][0-9]", {.list = "0-9", .least = 3, .most = 3});
}

const List& patterns() {
  static const List list = [] {
    List patterns;
    add_gpt2(patterns);
    add_words(patterns);
    add_deepseek(patterns);
    add_numbers(patterns);
    return patterns;
  }();
  return list;
}

/// Replaces \r and \n with the characters themselves.
std::string escaped(std::string_view regex) {
  std::string text;
  for (const char c : regex) {
    if (c == '\n' || c == '\r') {
      text += c == '\n' ? "\\n" : "\\r";
    } else {
      text += c;
    }
  }
  return text;
}

}  // namespace

const SplitPattern* SplitPattern::find(std::string_view regex) {
  constexpr size_t longer_than_any = 4096;
  if (regex.size() > longer_than_any) return nullptr;
  const std::string wanted = escaped(regex);
  for (const auto& pattern : patterns()) {
    if (pattern->regex() == wanted) return pattern.get();
  }
  return nullptr;
}

const SplitPattern* SplitPattern::find_name(std::string_view name) {
  for (const auto& pattern : patterns()) {
    if (pattern->name() == name && pattern->name().find(' ') == std::string_view::npos) return pattern.get();
  }
  return nullptr;
}

std::vector<std::string_view> SplitPattern::known() {
  std::vector<std::string_view> names;
  for (const auto& pattern : patterns()) {
    if (names.empty() || names.back() != pattern->name()) names.push_back(pattern->name());
  }
  return names;
}

bool SplitPattern::next(std::string_view text, size_t at, size_t& begin, size_t& end) const {
  const SplitScanner scanner(text);
  for (begin = at; begin < text.size(); begin = after_failure(scanner, begin)) {
    end = match_end(scanner, begin);
    if (end > begin) return true;
  }
  return false;
}

size_t SplitPattern::piece_end(const SplitScanner& text, size_t i) const {
  const size_t end = match_end(text, i);
  if (end > i) return end;
  size_t gap_end = i;
  while (true) {
    gap_end = after_failure(text, gap_end);
    if (text.ends(gap_end) || match_end(text, gap_end) > gap_end) return gap_end;
  }
}

void SplitPattern::split(std::string_view text, std::vector<std::string_view>& words) const {
  const SplitScanner scanner(text);
  for (size_t i = 0; i < text.size();) {
    const size_t end = piece_end(scanner, i);
    words.push_back(text.substr(i, end - i));
    i = end;
  }
}

}  // namespace llmtrain
