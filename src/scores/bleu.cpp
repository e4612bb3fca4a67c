// BLEU (Papineni et al. 2002) as in sacreBLEU 2.6 (Post 2018); smoothing after Chen and Cherry 2014.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "scores/ngrams.hpp"
#include "scores/text_metric.hpp"
#include "text/chat/jinja/python_text.hpp"
#include "text/unicode/code_points.hpp"
#include "text/unicode/unicode.hpp"

namespace llmtrain {

// sacreBLEU's tokenizers: 13a of mteval-v13a.pl and intl of mteval-v14.pl are sequences of regular expressions, each of
// which replaces matches from left to right that do not overlap.

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

/// Puts white space between the tokens of sacreBLEU's tokenizers.
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

using Smoothing = TextMetricOptions::Smoothing;

constexpr size_t max_order = 4;

/// Sums: tokens of the hypothesis and of the closest reference, then for each order the n-grams of the hypothesis that
/// a reference has, then all of them.
constexpr size_t hypothesis_length = 0, reference_length = 1, matches = 2, totals = matches + max_order;

class Bleu final : public TextMetric {
 public:
  explicit Bleu(const TextMetricOptions& options) : options_(options) {}

  size_t size() const override { return totals + max_order; }

  void add(const TextSegment& segment, std::span<double> sums) override {
    NgramTable table;
    const NgramIds hypothesis = tokens(table, segment.hypothesis);
    std::vector<NgramIds> allowed(max_order);  // of each n-gram the most that one reference has
    size_t closest = 0;
    for (size_t r = 0; r < segment.references.size(); ++r) {
      const NgramIds reference = tokens(table, segment.references[r]);
      const auto distance = [&](size_t length) {
        return std::max(length, hypothesis.size()) - std::min(length, hypothesis.size());
      };
      const auto rank = [&](size_t length) { return std::pair(distance(length), length); };
      if (r == 0 || rank(reference.size()) < rank(closest)) closest = reference.size();
      const std::vector<NgramIds> ngrams = table.ngrams(reference, max_order);
      for (size_t n = 0; n < max_order; ++n) {
        NgramIds both;
        std::ranges::set_union(allowed[n], ngrams[n], std::back_inserter(both));
        allowed[n] = std::move(both);
      }
    }
    sums[hypothesis_length] += static_cast<double>(hypothesis.size());
    sums[reference_length] += static_cast<double>(closest);
    const std::vector<NgramIds> ngrams = table.ngrams(hypothesis, max_order);
    for (size_t n = 0; n < max_order; ++n) {
      sums[matches + n] += static_cast<double>(count_common(ngrams[n], allowed[n]));
      sums[totals + n] += static_cast<double>(ngrams[n].size());
    }
  }

  TextScore score(std::span<const double> sums) const override {
    const double length = sums[hypothesis_length], expected = sums[reference_length];
    double brevity = 1;
    if (length < expected) brevity = length > 0 ? std::exp(1 - expected / length) : 0;
    size_t orders = max_order;
    const std::array<double, max_order> precisions = smoothed_precisions(sums, orders);
    double logarithms = 0;
    for (size_t n = 0; n < orders; ++n) logarithms += precisions[n] == 0 ? -9999999999.0 : std::log(precisions[n]);
    const bool any = std::ranges::any_of(sums.subspan(matches, max_order), [](double count) { return count > 0; });
    TextScore result;
    result.value = any ? brevity * std::exp(logarithms / static_cast<double>(orders)) : 0;
    for (size_t n = 0; n < max_order; ++n) {
      result.details.emplace_back(fmt::format("precision_{}", n + 1), any ? precisions[n] : 0);
    }
    result.details.emplace_back("brevity_penalty", brevity);
    result.details.emplace_back("hypothesis_length", length);
    result.details.emplace_back("reference_length", expected);
    return result;
  }

  std::string signature(const std::string& references) const override {
    std::string smooth(name_of(options_.smoothing));
    if (options_.smoothing == Smoothing::floor || options_.smoothing == Smoothing::add_k) {
      smooth += fmt::format("[{:.2f}]", smooth_value());
    }
    return fmt::format("nrefs:{}|case:{}|eff:{}|tok:{}|smooth:{}|version:2.6.0", references,
                       options_.lowercase ? "lc" : "mixed", options_.effective_order ? "yes" : "no",
                       name_of(options_.tokenizer), smooth);
  }

 private:
  NgramIds tokens(NgramTable& table, const std::string& text) const {
    const std::string cased = options_.lowercase ? jinja::with_case(text, jinja::Case::lower) : text;
    const size_t end = jinja::strip_python_spaces_right(cased, 0, cased.size());
    const std::string separated = separate_bleu_tokens(std::string_view(cased).substr(0, end), options_.tokenizer);
    return table.tokens(split_words(separated));
  }

  double smooth_value() const {
    return options_.smooth_value.value_or(options_.smoothing == Smoothing::floor ? 0.1 : 1.0);
  }

  /// Returns percentages; `orders` becomes the number of orders that count.
  std::array<double, max_order> smoothed_precisions(std::span<const double> sums, size_t& orders) const {
    std::array<double, max_order> precisions{};
    double halvings = 1;
    for (size_t n = 0; n < max_order; ++n) {
      const double added = options_.smoothing == Smoothing::add_k && n > 0 ? smooth_value() : 0;
      const double found = sums[matches + n] + added, total = sums[totals + n] + added;
      if (total == 0) break;
      if (options_.effective_order) orders = n + 1;
      if (found > 0) {
        precisions[n] = 100 * found / total;
      } else if (options_.smoothing == Smoothing::exp) {
        halvings *= 2;
        precisions[n] = 100 / (halvings * total);
      } else if (options_.smoothing == Smoothing::floor) {
        precisions[n] = 100 * smooth_value() / total;
      }
    }
    return precisions;
  }

  TextMetricOptions options_;
};

}  // namespace

std::unique_ptr<TextMetric> make_bleu(const TextMetricOptions& options) { return std::make_unique<Bleu>(options); }

}  // namespace llmtrain
