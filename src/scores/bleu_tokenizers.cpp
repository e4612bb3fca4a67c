// sacreBLEU's tokenizers: 13a of mteval-v13a.pl and intl of mteval-v14.pl are sequences of regular expressions, each of
// which replaces matches from left to right that do not overlap.

#include "scores/bleu_tokenizers.hpp"

#include "text/unicode/code_points.hpp"
#include "text/unicode/unicode.hpp"

namespace llmtrain {

namespace {

using Test = bool (*)(char32_t);

/// Puts spaces around each character that satisfies the test.
std::string separate_characters(std::string_view text, Test test) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const char32_t c = next_code_point(text, i);
    const bool found = test(c);
    if (found) out += ' ';
    append_code_point(out, c);
    if (found) out += ' ';
  }
  return out;
}

enum class Side { before, after };

/// Puts a space between each pair of characters that satisfy the tests, and another before or after the pair.
std::string separate_pairs(std::string_view text, Test first, Test second, Side side) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const char32_t a = next_code_point(text, i);
    size_t behind = i;
    const char32_t b = i < text.size() ? next_code_point(text, behind) : U'\0';
    if (behind == i || !first(a) || !second(b)) {
      append_code_point(out, a);
      continue;
    }
    if (side == Side::before) out += ' ';
    append_code_point(out, a);
    out += ' ';
    append_code_point(out, b);
    if (side == Side::after) out += ' ';
    i = behind;
  }
  return out;
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  std::string out;
  size_t begin = 0;
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, begin)) {
    out.append(text, begin, at - begin).append(to);
    begin = at + from.size();
  }
  if (begin > 0) text = out.append(text, begin);
}

bool is_ascii_digit(char32_t c) { return c >= '0' && c <= '9'; }
bool is_no_ascii_digit(char32_t c) { return !is_ascii_digit(c); }
bool is_period_or_comma(char32_t c) { return c == '.' || c == ','; }
bool is_dash(char32_t c) { return c == '-'; }
/// ASCII's signs without ' , - .
bool is_sign(char32_t c) {
  return (c >= '{' && c <= '~') || (c >= '[' && c <= '`') || (c >= ' ' && c <= '&') || (c >= '(' && c <= '+') ||
         (c >= ':' && c <= '@') || c == '/';
}

std::string separate_13a(std::string_view line) {
  std::string text(line);
  replace_all(text, "<skipped>", "");
  replace_all(text, "-\n", "");
  replace_all(text, "\n", " ");
  replace_all(text, "&quot;", "\"");
  replace_all(text, "&amp;", "&");
  replace_all(text, "&lt;", "<");
  replace_all(text, "&gt;", ">");
  text = separate_characters(" " + text + " ", is_sign);
  text = separate_pairs(text, is_no_ascii_digit, is_period_or_comma, Side::after);
  text = separate_pairs(text, is_period_or_comma, is_no_ascii_digit, Side::before);
  return separate_pairs(text, is_ascii_digit, is_dash, Side::after);
}

std::string separate_intl(std::string_view line) {
  const Test no_number = [](char32_t c) { return !is_number(c); };
  std::string text = separate_pairs(line, no_number, is_punctuation, Side::after);
  text = separate_pairs(text, is_punctuation, no_number, Side::before);
  return separate_characters(text, is_symbol);
}

}  // namespace

std::string separate_bleu_tokens(std::string_view text, TextMetricOptions::Tokenizer tokenizer) {
  using Tokenizer = TextMetricOptions::Tokenizer;
  switch (tokenizer) {
    case Tokenizer::mteval13a:
      return separate_13a(text);
    case Tokenizer::intl:
      return separate_intl(text);
    case Tokenizer::none:
      break;
    case Tokenizer::character:
      return separate_characters(text, [](char32_t) { return true; });
  }
  return std::string(text);
}

}  // namespace llmtrain
