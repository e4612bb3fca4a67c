// List of the metrics of texts.

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/deck/suggestion.hpp"
#include "core/error.hpp"
#include "core/find_entry.hpp"
#include "scores/text_metric.hpp"

namespace llmtrain {

namespace {

constexpr std::string_view bert_score_prefix = "bertscore:";

constexpr std::array metrics = {
    TextMetricEntry{"bleu", make_bleu, "--tokenize --lowercase --smooth-method --smooth-value"},
    TextMetricEntry{"chrf", make_chrf, "--lowercase"},
    TextMetricEntry{"chrf++", make_chrf_plus_plus, "--lowercase"},
    TextMetricEntry{"rouge1", make_rouge1, "--stem"},
    TextMetricEntry{"rouge2", make_rouge2, "--stem"},
    TextMetricEntry{"rougeL", make_rouge_l, "--stem"},
    TextMetricEntry{"rougeLsum", make_rouge_lsum, "--stem"},
    TextMetricEntry{"exact_match", make_exact_match, ""},
    TextMetricEntry{"token_f1", make_token_f1, ""},
    TextMetricEntry{"bertscore", make_bert_score, "--layer --idf --baseline"},
};

}  // namespace

std::span<const TextMetricEntry> text_metrics() { return metrics; }

const TextMetricEntry* find_text_metric(std::string_view name) {
  return find_entry(metrics, name, &TextMetricEntry::name);
}

std::vector<std::string> text_metric_names(const std::vector<std::string>& wanted) {
  std::vector<std::string> names;
  for (const std::string& entry : wanted) {
    const std::string name = entry.starts_with(bert_score_prefix) ? "bertscore" : entry;
    const size_t before = names.size();
    for (const TextMetricEntry& metric : text_metrics()) {
      if (metric.name == name || (name == "rouge" && metric.name.starts_with("rouge"))) names.emplace_back(metric.name);
    }
    if (entry == "bertscore") {
      throw UserError(ExitCode::deck,
                      "bertscore needs a model: bertscore:DIR, the folder of a BERT, a RoBERTa or a decoder");
    }
    if (names.size() > before) continue;
    std::vector<std::string_view> known = {"rouge"};
    for (const TextMetricEntry& metric : text_metrics()) known.push_back(metric.name);
    throw UserError(ExitCode::deck, fmt::format("there is no metric '{}'{}; there are {}", entry,
                                                did_you_mean(name, known), joined(known, ", ")));
  }
  std::vector<std::string> sorted = names;
  std::ranges::sort(sorted);
  if (std::ranges::adjacent_find(sorted) != sorted.end()) {
    throw UserError(ExitCode::deck, fmt::format("{} is repeated", *std::ranges::adjacent_find(sorted)));
  }
  return names;
}

std::vector<std::unique_ptr<TextMetric>> open_text_metrics(const std::vector<std::string>& wanted) {
  TextMetricOptions options;
  for (const std::string& entry : wanted) {
    if (entry.starts_with(bert_score_prefix)) options.encoder = entry.substr(bert_score_prefix.size());
  }
  std::vector<std::unique_ptr<TextMetric>> metrics;
  for (const std::string& name : text_metric_names(wanted)) metrics.push_back(find_text_metric(name)->make(options));
  return metrics;
}

}  // namespace llmtrain
