// ROUGE (Lin 2004) as in Google's rouge-score 0.1: of several references the one with the best F1 counts, and the score
// of a corpus is the mean of its segments' scores.

#include <algorithm>
#include <unordered_map>

#include "scores/ngrams.hpp"
#include "scores/text_metric.hpp"
#include "text/chat/jinja/python_text.hpp"

namespace llmtrain {

namespace {

enum class Kind : uint8_t { unigrams, bigrams, subsequence, summary };

struct Rouge {
  double precision = 0, recall = 0, f1 = 0;
};

Rouge rouge_of(int64_t common, size_t reference, size_t hypothesis) {
  Rouge rouge;
  if (common == 0) return rouge;
  rouge.precision = static_cast<double>(common) / static_cast<double>(hypothesis);
  rouge.recall = static_cast<double>(common) / static_cast<double>(reference);
  rouge.f1 = 2 * rouge.precision * rouge.recall / (rouge.precision + rouge.recall);
  return rouge;
}

/// Runs of ASCII letters and digits, in lower case.
NgramIds rouge_tokens(NgramTable& table, std::string_view text, bool stemmer) {
  std::string clean = jinja::with_case(text, jinja::Case::lower);
  for (char& c : clean) {
    if ((c < 'a' || c > 'z') && (c < '0' || c > '9')) c = ' ';
  }
  std::vector<std::string_view> words = split_words(clean);
  std::vector<std::string> stems;
  if (stemmer) {
    stems.reserve(words.size());
    for (std::string_view& word : words) {
      if (word.size() > 3) word = stems.emplace_back(porter_stem(std::string(word)));
    }
    std::erase_if(words, [](std::string_view word) { return word.empty(); });
  }
  return table.tokens(words);
}

std::vector<NgramIds> rouge_sentences(NgramTable& table, std::string_view text, bool stemmer) {
  std::vector<NgramIds> sentences;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    sentences.push_back(rouge_tokens(table, text.substr(begin, end - begin), stemmer));
    begin = end + 1;
  }
  return sentences;
}

/// Counts of each token.
std::unordered_map<uint32_t, int64_t> count_tokens(const std::vector<NgramIds>& sentences, size_t& all) {
  std::unordered_map<uint32_t, int64_t> counts;
  for (const NgramIds& sentence : sentences) {
    all += sentence.size();
    for (const uint32_t token : sentence) ++counts[token];
  }
  return counts;
}

/// ROUGE-Lsum: each sentence of the reference counts the tokens that it has in common with any sentence of the
/// hypothesis, and no token counts more often than it occurs on either side.
Rouge summary_rouge(const std::vector<NgramIds>& reference, const std::vector<NgramIds>& hypothesis) {
  size_t reference_size = 0, hypothesis_size = 0;
  auto reference_left = count_tokens(reference, reference_size);
  auto hypothesis_left = count_tokens(hypothesis, hypothesis_size);
  int64_t common = 0;
  for (const NgramIds& sentence : reference) {
    std::vector<bool> found(sentence.size());
    for (const NgramIds& other : hypothesis) {
      for (const size_t position : common_subsequence(sentence, other)) found[position] = true;
    }
    for (size_t i = 0; i < sentence.size(); ++i) {
      if (!found[i] || hypothesis_left[sentence[i]] == 0 || reference_left[sentence[i]] == 0) continue;
      ++common;
      --hypothesis_left[sentence[i]];
      --reference_left[sentence[i]];
    }
  }
  return rouge_of(common, reference_size, hypothesis_size);
}

/// Sums: segments, and their precisions, recalls and F1.
class RougeMetric final : public TextMetric {
 public:
  RougeMetric(Kind kind, bool stemmer) : kind_(kind), stemmer_(stemmer) {}

  size_t size() const override { return 4; }

  void add(const TextSegment& segment, std::span<double> sums) override {
    Rouge best = compare(segment.references.front(), segment.hypothesis);
    for (size_t r = 1; r < segment.references.size(); ++r) {
      const Rouge rouge = compare(segment.references[r], segment.hypothesis);
      if (rouge.f1 > best.f1) best = rouge;
    }
    sums[0] += 1;
    sums[1] += best.precision;
    sums[2] += best.recall;
    sums[3] += best.f1;
  }

  TextScore score(std::span<const double> sums) const override {
    return {sums[3] / sums[0], {{"precision", sums[1] / sums[0]}, {"recall", sums[2] / sums[0]}}};
  }

 private:
  Rouge compare(std::string_view reference_text, std::string_view hypothesis_text) const {
    NgramTable table;
    if (kind_ == Kind::summary) {
      return summary_rouge(rouge_sentences(table, reference_text, stemmer_),
                           rouge_sentences(table, hypothesis_text, stemmer_));
    }
    const NgramIds reference = rouge_tokens(table, reference_text, stemmer_);
    const NgramIds hypothesis = rouge_tokens(table, hypothesis_text, stemmer_);
    if (kind_ == Kind::subsequence) {
      return rouge_of(common_subsequence_length(reference, hypothesis), reference.size(), hypothesis.size());
    }
    const size_t order = kind_ == Kind::unigrams ? 1 : 2;
    const NgramIds expected = table.ngrams(reference, order).back(), found = table.ngrams(hypothesis, order).back();
    return rouge_of(count_common(expected, found), expected.size(), found.size());
  }

  Kind kind_;
  bool stemmer_;
};

}  // namespace

std::unique_ptr<TextMetric> make_rouge1(const TextMetricOptions& options) {
  return std::make_unique<RougeMetric>(Kind::unigrams, options.stemmer);
}

std::unique_ptr<TextMetric> make_rouge2(const TextMetricOptions& options) {
  return std::make_unique<RougeMetric>(Kind::bigrams, options.stemmer);
}

std::unique_ptr<TextMetric> make_rouge_l(const TextMetricOptions& options) {
  return std::make_unique<RougeMetric>(Kind::subsequence, options.stemmer);
}

std::unique_ptr<TextMetric> make_rouge_lsum(const TextMetricOptions& options) {
  return std::make_unique<RougeMetric>(Kind::summary, options.stemmer);
}

}  // namespace llmtrain
