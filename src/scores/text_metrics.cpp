// List of the metrics of texts.

#include <algorithm>
#include <array>

#include "core/find_entry.hpp"
#include "scores/text_metric.hpp"

namespace llmtrain {

namespace {

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

}  // namespace llmtrain
