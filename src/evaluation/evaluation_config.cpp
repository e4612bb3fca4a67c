#include "evaluation/evaluation_config.hpp"

#include "core/deck/deck.hpp"
#include "scores/text_metric.hpp"

namespace llmtrain {

void EvaluationConfig::visit(DeckKeys& keys) {
  keys.section("evaluation", "Measure the loss on validation data.", Change::nothing, sample_tasks);
  keys.key("every_steps", every_steps,
           {.unit = "steps",
            .range = at_least(0),
            .doc = "Interval of evaluations; 0 = never during the run.",
            .tasks = training_tasks});
  keys.key("every_epochs", every_epochs,
           {.unit = "epochs",
            .range = between(0, 1e6),
            .doc = "Interval of evaluations in passes over the training data, in place of every_steps; 0 = off.",
            .tasks = training_tasks});
  keys.key("at_start", at_start, {.doc = "Evaluate before the first step too.", .tasks = training_tasks});
  keys.key("at_end", at_end, {.doc = "Evaluate after the last step too.", .tasks = training_tasks});
  keys.key("batches", batches,
           {.range = at_least(0),
            .doc = "Number of batches of batch.global sequences, in canonical order; 0 = all validation data."});
  keys.key("early_stopping_patience", early_stopping_patience,
           {.unit = "evaluations",
            .range = at_least(0),
            .doc = "End the run after this many consecutive evaluations without an improvement of "
                   "checkpoint.best_metric; 0 = off.",
            .tasks = training_tasks});
  keys.key("early_stopping_threshold", early_stopping_threshold,
           {.range = at_least(0),
            .doc = "Minimum improvement that counts (in nats, or as a fraction of tokens).",
            .tasks = training_tasks});
  keys.key("load_best_at_end", load_best_at_end,
           {.doc = "End with the weights of the best evaluation by checkpoint.best_metric, which are then exported. A "
                   "checkpoint follows every better evaluation.",
            .tasks = training_tasks});
  keys.key(
      "stride", stride,
      {.unit = "tokens",
       .range = at_least(0),
       .doc = "Distance between windows of sequence_length tokens, with run.task = evaluate and packing = wrap. Every "
              "token is scored once, given all preceding tokens of its window. 0 = windows do not overlap."});
  keys.key(
      "tasks", tasks,
      {.doc = "Files of rows with choices, which are scored by the log-likelihood of each choice after its context "
              "(acc, acc_norm, their standard errors), or of one continuation (perplexity, acc). Rows are those of "
              "HellaSwag, PIQA, ARC, WinoGrande, LAMBADA and MMLU as they are published, or {context, choices, "
              "answer}, {context, continuation}. Contexts longer than batch.sequence_length lose their beginning."});
  keys.key(
      "metrics", metrics,
      {.doc = "Metrics of texts (bleu, chrf, chrf++, rouge or one of rouge1, rouge2, rougeL, rougeLsum, exact_match, "
              "token_f1, or bertscore:DIR with the folder of a BERT, a RoBERTa or a decoder): the model answers the "
              "prompts of the validation rows by greedy decoding, and its answers are compared with those of the rows.",
       .tasks = conversation_tasks | TaskSet{Task::evaluate}});
  keys.key("max_new_tokens", max_new_tokens,
           {.unit = "tokens",
            .range = at_least(1),
            .doc = "Longest answer for evaluation.metrics. An answer also ends where prompt and answer have "
                   "batch.sequence_length tokens.",
            .tasks = conversation_tasks | TaskSet{Task::evaluate}});
  keys.key(
      "log_samples", log_samples,
      {.doc = "Write the log-probabilities of each row of evaluation.tasks to evaluation_rows.jsonl, and the answers "
              "for evaluation.metrics to generations.jsonl; in training, those of the last evaluation."});
}

void EvaluationConfig::resolve(DeckLoader& deck) {
  if (every_epochs > 0) every_steps = 1;  // until the data are known
  if (tasks.empty() && metrics.empty())
    deck.unused("evaluation.log_samples", "no effect without evaluation.tasks or evaluation.metrics");
  if (metrics.empty()) deck.unused("evaluation.max_new_tokens", "no effect without evaluation.metrics");
  try {
    text_metric_names(metrics);
  } catch (const UserError& error) {
    deck.fail("evaluation.metrics", error.what());
  }
}

}  // namespace llmtrain
