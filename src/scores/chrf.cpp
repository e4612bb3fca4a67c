// chrF (Popovic 2015) and chrF++ (Popovic 2017) as in sacreBLEU 2.6: character n-grams up to 6, for chrF++ also word
// n-grams up to 2, beta 2, white space left out, orders that a text does not have left out.

#include <fmt/format.h>

#include "scores/ngrams.hpp"
#include "scores/text_metric.hpp"
#include "text/chat/jinja/python_text.hpp"

namespace llmtrain {

namespace {

constexpr size_t character_orders = 6;

bool is_ascii_punctuation(char c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

/// Words, from which one sign of punctuation at the end, or else at the beginning, is cut.
std::vector<std::string_view> split_punctuation(std::string_view text) {
  std::vector<std::string_view> words;
  for (const std::string_view word : split_words(text)) {
    size_t cut = 0;
    if (count_code_points(word) > 1) {
      if (is_ascii_punctuation(word.back())) {
        cut = word.size() - 1;
      } else if (is_ascii_punctuation(word.front())) {
        cut = 1;
      }
    }
    if (cut > 0) words.push_back(word.substr(0, cut));
    words.push_back(word.substr(cut));
  }
  return words;
}

/// Sums: for each order the n-grams of the hypothesis, of the best reference, and of both.
class Chrf final : public TextMetric {
 public:
  Chrf(bool lowercase, size_t word_orders) : lowercase_(lowercase), word_orders_(word_orders) {}

  size_t size() const override { return 3 * (character_orders + word_orders_); }

  void add(const TextSegment& segment, std::span<double> sums) override {
    NgramTable table;
    const std::vector<NgramIds> hypothesis = ngrams(table, segment.hypothesis);
    std::vector<double> best, counts;
    double best_value = -1;
    for (const std::string& text : segment.references) {
      const std::vector<NgramIds> reference = ngrams(table, text);
      counts.clear();
      for (size_t n = 0; n < hypothesis.size(); ++n) {
        counts.push_back(reference[n].empty() ? 0 : static_cast<double>(hypothesis[n].size()));
        counts.push_back(static_cast<double>(reference[n].size()));
        counts.push_back(static_cast<double>(count_common(hypothesis[n], reference[n])));
      }
      const double value = f_score(counts);
      if (value <= best_value) continue;
      best_value = value;
      best = counts;
    }
    for (size_t i = 0; i < best.size(); ++i) sums[i] += best[i];
  }

  TextScore score(std::span<const double> sums) const override { return {f_score(sums), {}}; }

  std::string signature(const std::string& references) const override {
    return fmt::format("nrefs:{}|case:{}|eff:yes|nc:{}|nw:{}|space:no|version:2.6.0", references,
                       lowercase_ ? "lc" : "mixed", character_orders, word_orders_);
  }

 private:
  std::vector<NgramIds> ngrams(NgramTable& table, const std::string& text) const {
    const std::string cased = lowercase_ ? jinja::with_case(text, jinja::Case::lower) : text;
    std::vector<NgramIds> all = table.ngrams(table.characters(cased), character_orders);
    if (word_orders_ > 0) {
      for (NgramIds& order : table.ngrams(table.tokens(split_punctuation(cased)), word_orders_)) {
        all.push_back(std::move(order));
      }
    }
    return all;
  }

  static double f_score(std::span<const double> counts) {
    constexpr double factor = 4;  // beta squared
    double precision = 0, recall = 0;
    int orders = 0;
    for (size_t i = 0; i < counts.size(); i += 3) {
      if (counts[i] == 0 || counts[i + 1] == 0) continue;
      precision += counts[i + 2] / counts[i];
      recall += counts[i + 2] / counts[i + 1];
      ++orders;
    }
    if (precision + recall == 0) return 0;
    precision /= orders;
    recall /= orders;
    return 100 * ((1 + factor) * precision * recall / (factor * precision + recall));
  }

  bool lowercase_;
  size_t word_orders_;
};

}  // namespace

std::unique_ptr<TextMetric> make_chrf(const TextMetricOptions& options) {
  return std::make_unique<Chrf>(options.lowercase, 0);
}

std::unique_ptr<TextMetric> make_chrf_plus_plus(const TextMetricOptions& options) {
  return std::make_unique<Chrf>(options.lowercase, 2);
}

}  // namespace llmtrain
