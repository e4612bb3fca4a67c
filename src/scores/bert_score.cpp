// BERTScore (Zhang et al. 2020), as the package bert-score computes it: each token is compared with the most similar
// token of the other text, by the cosine of their embeddings.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "core/error.hpp"
#include "core/files/file_handle.hpp"
#include "scores/text_encoder.hpp"
#include "scores/text_metric.hpp"

namespace llmtrain {

namespace {

using Scores = std::array<double, 3>;  ///< precision, recall, F1

/// Baselines of a layer: a line `LAYER,P,R,F` of the package's files.
Scores read_baseline(const std::string& path, int64_t layer) {
  const std::string text = FileHandle::open_to_read(path).read_text(int64_t{1} << 20);
  size_t begin = text.find('\n');  // below the names of the columns
  for (int64_t line = 0; begin != std::string::npos; ++line, begin = text.find('\n', begin + 1)) {
    if (line < layer) continue;
    double number = 0;
    Scores scores{};
    if (std::sscanf(text.c_str() + begin + 1, "%lf,%lf,%lf,%lf", &number, &scores[0], &scores[1], &scores[2]) == 4)
      return scores;
    break;
  }
  throw UserError(ExitCode::bad_content, fmt::format("{}: there is no line LAYER,P,R,F for layer {}", path, layer));
}

/// Embeddings of length 1, with the weights of their tokens.
struct Sentence {
  std::vector<int32_t> ids;
  std::vector<float> values;
  std::vector<double> weights;
};

/// Weighted mean over the tokens of `a` of the highest cosine with a token of `b`.
double matched(const Sentence& a, const Sentence& b, size_t width) {
  double sum = 0, weights = 0;
  for (size_t i = 0; i < a.ids.size(); ++i) {
    double best = -2;
    for (size_t j = 0; j < b.ids.size(); ++j) {
      double cosine = 0;
      for (size_t c = 0; c < width; ++c)
        cosine += static_cast<double>(a.values[i * width + c]) * static_cast<double>(b.values[j * width + c]);
      best = std::max(best, cosine);
    }
    sum += a.weights[i] * best;
    weights += a.weights[i];
  }
  return weights > 0 ? sum / weights : 0;
}

/// Sums: segments, precisions, recalls and F1s.
class BertScore final : public TextMetric {
 public:
  explicit BertScore(const TextMetricOptions& options)
      : encoder_(open_text_encoder(options.encoder, options.encoder_layer)), uses_idf_(options.idf) {
    if (!options.baseline.empty()) {
      baseline_ = read_baseline(options.baseline, encoder_->layers());
      rescales_ = true;
    }
  }

  bool needs_device() const override { return encoder_->needs_device(); }
  void start() override { encoder_->start(); }
  size_t size() const override { return 4; }

  bool needs_corpus() const override { return uses_idf_; }
  void read_corpus(std::span<const TextSegment> segments) override {
    for (const TextSegment& segment : segments) {
      for (const std::string& reference : segment.references) {
        ++documents_;
        const std::vector<int32_t> ids = encoder_->encode(reference);
        for (const int32_t id : std::set<int32_t>(ids.begin(), ids.end())) ++counts_[id];
      }
    }
  }

  void add(const TextSegment& segment, std::span<double> sums) override {
    std::vector<std::string> texts = {segment.hypothesis};
    texts.insert(texts.end(), segment.references.begin(), segment.references.end());
    std::vector<Sentence> sentences;
    for (TokenEmbeddings& embeddings : encoder_->embed(texts)) sentences.push_back(normalised(std::move(embeddings)));
    Scores best;
    best.fill(-1e30);
    for (size_t i = 1; i < sentences.size(); ++i) {
      const Scores scores = compare(sentences[0], sentences[i]);
      for (size_t s = 0; s < best.size(); ++s) best[s] = std::max(best[s], scores[s]);
    }
    sums[0] += 1;
    for (size_t s = 0; s < best.size(); ++s) sums[s + 1] += (best[s] - baseline_[s]) / (1 - baseline_[s]);
  }

  TextScore score(std::span<const double> sums) const override {
    return {sums[3] / sums[0],
            {{"precision", sums[1] / sums[0]},
             {"recall", sums[2] / sums[0]},
             {"layer", static_cast<double>(encoder_->layers())}}};
  }

  std::string signature(const std::string& references) const override {
    return fmt::format("{}|layer:{}|idf:{}|rescaled:{}|nrefs:{}", encoder_->kind(), encoder_->layers(),
                       uses_idf_ ? "yes" : "no", rescales_ ? "yes" : "no", references);
  }

 private:
  double weight(int32_t id) const {
    if (!uses_idf_) return encoder_->surrounds(id) ? 0 : 1;
    const auto found = counts_.find(id);
    const int64_t count = found == counts_.end() ? 0 : found->second;
    return std::log(static_cast<double>(documents_ + 1) / static_cast<double>(count + 1));
  }

  /// The embeddings with length 1, and the weights of their tokens.
  Sentence normalised(TokenEmbeddings embeddings) const {
    const auto width = static_cast<size_t>(encoder_->width());
    Sentence sentence{std::move(embeddings.ids), std::move(embeddings.values), {}};
    for (size_t t = 0; t < sentence.ids.size(); ++t) {
      sentence.weights.push_back(weight(sentence.ids[t]));
      float* const row = sentence.values.data() + t * width;
      double squares = 0;
      for (size_t c = 0; c < width; ++c) squares += static_cast<double>(row[c]) * static_cast<double>(row[c]);
      const double scale = 1 / std::sqrt(squares);
      for (size_t c = 0; c < width; ++c) row[c] = static_cast<float>(static_cast<double>(row[c]) * scale);
    }
    return sentence;
  }

  Scores compare(const Sentence& hypothesis, const Sentence& reference) const {
    if (std::min(hypothesis.ids.size(), reference.ids.size()) <= encoder_->around()) return {0, 0, 0};
    const size_t width = static_cast<size_t>(encoder_->width());
    const double precision = matched(hypothesis, reference, width), recall = matched(reference, hypothesis, width);
    const double f1 = 2 * precision * recall / (precision + recall);
    return {precision, recall, std::isnan(f1) ? 0 : f1};
  }

  std::unique_ptr<TextEncoder> encoder_;
  bool uses_idf_, rescales_ = false;
  Scores baseline_{};
  int64_t documents_ = 0;              ///< references
  std::map<int32_t, int64_t> counts_;  ///< references that have a token
};

}  // namespace

std::unique_ptr<TextMetric> make_bert_score(const TextMetricOptions& options) {
  if (options.encoder.empty()) {
    throw UserError(ExitCode::command_line,
                    "bertscore needs the folder of a BERT, a RoBERTa or a decoder: --model DIR");
  }
  return std::make_unique<BertScore>(options);
}

}  // namespace llmtrain
