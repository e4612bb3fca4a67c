#pragma once
// Metrics that compare texts with references: BLEU, chrF, ROUGE, exact match, token F1, BERTScore. A metric reduces a
// segment to a few numbers. Their sums over segments, and over ranks, give the score of a corpus; those of one segment
// give its own. All texts are well-formed UTF-8. To add a metric, add a file with its make_ function and a line in
// text_metrics.cpp.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/deck/named_enum.hpp"

namespace llmtrain {

struct TextSegment {
  std::string hypothesis;
  std::vector<std::string> references;  ///< at least one
};

/// Settings of all metrics; each uses some of them (TextMetricEntry::settings).
struct TextMetricOptions {
  enum class Tokenizer : uint8_t { mteval13a, intl, none, character };
  enum class Smoothing : uint8_t { exp, floor, add_k, none };

  Tokenizer tokenizer = Tokenizer::mteval13a;
  bool lowercase = false;
  Smoothing smoothing = Smoothing::exp;
  std::optional<double> smooth_value;  ///< of floor and add_k; nothing: 0.1 and 1
  bool effective_order = false;        ///< BLEU of the orders that a text has, as for single segments
  bool stemmer = false;                ///< ROUGE of Porter's stems
  std::string encoder;                 ///< folder of BERTScore's encoder or decoder
  int64_t encoder_layer = 0;           ///< layer whose embeddings count; 0: the usual one
  bool idf = false;                    ///< BERTScore weighs tokens by how few references have them
  std::string baseline;                ///< file of bert-score with baselines of layers; empty: scores are not rescaled
};

template <>
inline constexpr auto enum_names<TextMetricOptions::Tokenizer> = name_list("13a", "intl", "none", "char");
template <>
inline constexpr auto enum_names<TextMetricOptions::Smoothing> = name_list("exp", "floor", "add-k", "none");

struct TextScore {
  double value;
  std::vector<std::pair<std::string, double>> details;  ///< further numbers by name
};

class TextMetric {
 public:
  virtual ~TextMetric() = default;
  /// True if start() and add() run on the device, which the caller has started.
  virtual bool needs_device() const { return false; }
  /// Reads what the scores need and the constructor left; add() does so if it was not called.
  virtual void start() {}
  /// Number of sums.
  virtual size_t size() const = 0;
  /// True if read_corpus() must see all segments before the first add().
  virtual bool needs_corpus() const { return false; }
  virtual void read_corpus(std::span<const TextSegment> /*segments*/) {}
  /// Adds a segment to sums [size()], which begin with zeros.
  virtual void add(const TextSegment& segment, std::span<double> sums) = 0;
  virtual TextScore score(std::span<const double> sums) const = 0;
  /// Returns sacreBLEU's signature for this many references ("1", "var"), or BERTScore's model and settings; for other
  /// metrics it is empty.
  virtual std::string signature(const std::string& /*references*/) const { return ""; }
};

struct TextMetricEntry {
  std::string_view name;
  std::unique_ptr<TextMetric> (*make)(const TextMetricOptions& options);
  std::string_view settings;  ///< the options of llmtool score that the metric uses
};

/// All metrics.
std::span<const TextMetricEntry> text_metrics();
/// Returns nullptr for an unknown name.
const TextMetricEntry* find_text_metric(std::string_view name);

/// Metrics of evaluation.metrics, `rouge` being four of them, `bertscore:DIR` with the folder of its model. Throws
/// UserError(deck) that lists the names that exist.
std::vector<std::string> text_metric_names(const std::vector<std::string>& wanted);

/// Opens these metrics, with the folder of bertscore's model. Throws UserError.
std::vector<std::unique_ptr<TextMetric>> open_text_metrics(const std::vector<std::string>& wanted);

std::unique_ptr<TextMetric> make_bleu(const TextMetricOptions& options);
std::unique_ptr<TextMetric> make_chrf(const TextMetricOptions& options);
std::unique_ptr<TextMetric> make_chrf_plus_plus(const TextMetricOptions& options);
std::unique_ptr<TextMetric> make_rouge1(const TextMetricOptions& options);
std::unique_ptr<TextMetric> make_rouge2(const TextMetricOptions& options);
std::unique_ptr<TextMetric> make_rouge_l(const TextMetricOptions& options);
std::unique_ptr<TextMetric> make_rouge_lsum(const TextMetricOptions& options);
std::unique_ptr<TextMetric> make_exact_match(const TextMetricOptions& options);
std::unique_ptr<TextMetric> make_token_f1(const TextMetricOptions& options);
std::unique_ptr<TextMetric> make_bert_score(const TextMetricOptions& options);

}  // namespace llmtrain
