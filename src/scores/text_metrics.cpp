// List of the metrics of texts.

#include <algorithm>
#include <array>

#include "scores/text_metric.hpp"

namespace llmtrain {

namespace {

constexpr std::array metrics = {
    TextMetricEntry{"bleu", make_bleu, "--tokenize --lowercase --smooth-method --smooth-value"},
    TextMetricEntry{"chrf", make_chrf, "--lowercase"},
    TextMetricEntry{"chrf++", make_chrf_plus_plus, "--lowercase"},
    TextMetricEntry{"rouge1", make_rouge1, "--stemmer"},
    TextMetricEntry{"rouge2", make_rouge2, "--stemmer"},
    TextMetricEntry{"rougeL", make_rouge_l, "--stemmer"},
    TextMetricEntry{"rougeLsum", make_rouge_lsum, "--stemmer"},
    TextMetricEntry{"exact", make_exact_match, ""},
    TextMetricEntry{"f1", make_token_f1, ""},
};

}  // namespace

std::span<const TextMetricEntry> text_metrics() { return metrics; }

const TextMetricEntry* find_text_metric(std::string_view name) {
  const auto found = std::ranges::find(metrics, name, &TextMetricEntry::name);
  return found == metrics.end() ? nullptr : &*found;
}

}  // namespace llmtrain
