#pragma once
// The mapping of the deck to the scores of evaluations.

#include <cstdint>
#include <vector>

#include "config/config.hpp"
#include "data/dataset.hpp"
#include "evaluation/evaluation_scores.hpp"
#include "metrics/run_log.hpp"

namespace llmtrain {

/// Scores of evaluations of the first `steps` steps of `validation`, which may be null. Throws UserError.
EvaluationScores make_scores(const Config& config, const Dataset& data, const DataStream* validation, int64_t steps);

/// Rows of a batch, and positions of a text, that scores need: texts have up to batch.sequence_length tokens, however
/// long those of the data are. 0: there are none.
int64_t rows_of_scores(const Config& config, const Dataset& data);

/// Reads what evaluations will read: the rows of evaluation.tasks, the models of evaluation.metrics, and the rows of
/// data.validation, if they are instruction data whose tokenizer exists. Throws UserError for what cannot be used.
void check_scores(const Config& deck);

/// Prints what makes values of metrics comparable.
void print_signatures(RunLog& log, const AnswerEvaluation& answers);

/// Throws UserError(deck) if no evaluation has the metric checkpoint.best_metric. `objective`: names of the metrics of
/// the objective besides the loss; `counts_tokens`: whether the model ranks tokens.
void check_best_metric(const Config& config, const std::vector<std::string>& objective, bool counts_tokens,
                       const EvaluationScores& scores);

}  // namespace llmtrain
