#include "train/config/evaluation_config.hpp"

#include <fmt/format.h>

#include "train/config/config.hpp"

namespace llmtrain {

void EvaluationConfig::visit(DeckKeys& keys) {
  keys.section("evaluation", "The loss on validation data.", Change::nothing);
  keys.key("every_steps", every_steps, {.unit = "steps", .range = at_least(0), .doc = "0 = never during the run."});
  keys.key("at_start", at_start, {.doc = "Also before the first step."});
  keys.key("at_end", at_end, {.doc = "Also after the last step."});
  keys.key(
      "batches", batches,
      {.range = at_least(0), .doc = "Batches of batch.global sequences, in canonical order; 0 = all validation data."});
  keys.key("early_stopping_patience", early_stopping_patience,
           {.unit = "evaluations",
            .range = at_least(0),
            .doc = "The run ends after this many evaluations in a row without a better one by checkpoint.best_metric; "
                   "0 = off."});
  keys.key("early_stopping_threshold", early_stopping_threshold,
           {.range = at_least(0), .doc = "Better is better by more than this (nats, or a share of tokens)."});
  keys.key("load_best_at_end", load_best_at_end,
           {.doc = "The run ends with the weights of its best evaluation, by checkpoint.best_metric: what is exported "
                   "are these. Every better evaluation is followed by a checkpoint."});
  keys.key("stride", stride,
           {.unit = "tokens",
            .range = at_least(0),
            .doc = "With run.task = evaluate and packing = wrap: windows of sequence_length tokens begin this far "
                   "apart, and every token is scored once, with all of its window before it. 0 = windows do not "
                   "overlap."});
}

void EvaluationConfig::resolve(DeckLoader& deck, const Config& config) const {
  const DataConfig& data = config.data;
  if (config.run.task == RunConfig::Task::evaluate) {
    deck.check(stride == 0 || data.packing == DataConfig::Packing::wrap, {"evaluation.stride", "data.packing"},
               "windows are cut from a stream of tokens: they need data.packing = wrap");
    const int64_t length = config.batch.sequence_length;
    deck.check(stride <= length, {"evaluation.stride", "batch.sequence_length"},
               fmt::format("windows of batch.sequence_length = {} would leave tokens out between them", length));
    deck.check(stride == 0 || length >= 2, {"evaluation.stride", "batch.sequence_length"},
               "windows need batch.sequence_length = 2 or more: their last token is a target only");
    return;
  }
  deck.unused("evaluation.stride", "only for run.task = evaluate");
  if (early_stopping_patience == 0) {
    deck.unused("evaluation.early_stopping_threshold", "no effect with early_stopping_patience = 0");
    return;
  }
  deck.check(every_steps > 0, {"evaluation.early_stopping_patience", "evaluation.every_steps"},
             "early stopping needs evaluation.every_steps above 0");
  deck.check(!data.validation.empty() || data.validation_fraction > 0,
             {"evaluation.early_stopping_patience", "data.validation", "data.validation_fraction"},
             "early stopping needs validation data: data.validation, or data.validation_fraction above 0");
}

}  // namespace llmtrain
