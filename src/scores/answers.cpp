// Exact match and token F1 of answers, as in the evaluation script of SQuAD 2.0 (Rajpurkar et al. 2018): of several
// references the best one counts, and the score of a corpus is the mean of its segments' scores, in percent.

#include <algorithm>

#include "scores/ngrams.hpp"
#include "scores/text_metric.hpp"
#include "text/chat/jinja/python_text.hpp"
#include "text/unicode/unicode.hpp"

namespace llmtrain {

namespace {

bool is_alphanumeric(char32_t c) { return is_in_class(c, char_class::letter | char_class::number); }

bool is_ascii_punctuation(char32_t c) { return c > ' ' && c < 0x7F && !is_alphanumeric(c); }

/// Lower case without ASCII's punctuation and the words a, an, the.
std::string normalize_answer(const std::string& answer) {
  const std::string lower = jinja::with_case(answer, jinja::Case::lower);
  std::string text, word;
  const auto end_word = [&] {
    text += word == "a" || word == "an" || word == "the" ? " " : word;
    word.clear();
  };
  for (size_t i = 0; i < lower.size();) {
    const char32_t c = next_code_point(lower, i);
    if (is_ascii_punctuation(c)) continue;
    if (is_alphanumeric(c)) {
      append_code_point(word, c);
      continue;
    }
    end_word();
    append_code_point(text, c);
  }
  end_word();
  return text;
}

NgramIds answer_tokens(NgramTable& table, const std::string& answer) {
  const std::string text = normalize_answer(answer);
  return table.tokens(split_words(text));
}

double exact_match(const NgramIds& reference, const NgramIds& hypothesis) { return reference == hypothesis ? 1 : 0; }

double token_f1(const NgramIds& reference, const NgramIds& hypothesis) {
  if (reference.empty() || hypothesis.empty()) return exact_match(reference, hypothesis);
  NgramIds a = reference, b = hypothesis;
  std::ranges::sort(a);
  std::ranges::sort(b);
  const auto common = static_cast<double>(count_common(a, b));
  if (common == 0) return 0;
  const double precision = common / static_cast<double>(b.size()), recall = common / static_cast<double>(a.size());
  return 2 * precision * recall / (precision + recall);
}

/// Sums: segments and their scores.
class AnswerMetric final : public TextMetric {
 public:
  using Compare = double (*)(const NgramIds& reference, const NgramIds& hypothesis);
  explicit AnswerMetric(Compare compare) : compare_(compare) {}

  size_t size() const override { return 2; }

  void add(const TextSegment& segment, std::span<double> sums) override {
    NgramTable table;
    const NgramIds hypothesis = answer_tokens(table, segment.hypothesis);
    double best = 0;
    for (const std::string& reference : segment.references) {
      best = std::max(best, compare_(answer_tokens(table, reference), hypothesis));
    }
    sums[0] += 1;
    sums[1] += best;
  }

  TextScore score(std::span<const double> sums) const override { return {100 * sums[1] / sums[0], {}}; }

 private:
  Compare compare_;
};

}  // namespace

std::unique_ptr<TextMetric> make_exact_match(const TextMetricOptions&) {
  return std::make_unique<AnswerMetric>(exact_match);
}

std::unique_ptr<TextMetric> make_token_f1(const TextMetricOptions&) { return std::make_unique<AnswerMetric>(token_f1); }

}  // namespace llmtrain
