#pragma once
// The mapping of the deck to the scores of evaluations.

#include <cstdint>
#include <vector>

#include "data/dataset.hpp"
#include "train/config/config.hpp"
#include "train/evaluation_scores.hpp"

namespace llmtrain {

/// Scores of evaluations of the first `steps` steps of `validation`, which may be null. Throws UserError.
EvaluationScores make_scores(const Config& config, const Dataset& data, const DataStream* validation, int64_t steps);

/// Tokens that end an answer: those of the tokenizer, of the model's configuration and of its chat template.
/// Collective.
std::vector<int32_t> answer_stop_ids(const Config& config, const Dataset& data, Communicator& communicator);

/// Rows of a batch, and positions of a text, that scores need: texts have up to batch.sequence_length tokens, however
/// long those of the data are. 0: there are none.
int64_t rows_of_scores(const Config& config, const Dataset& data);

/// Reads the files of evaluation.tasks. Throws UserError for one without rows or with a wrong one.
void check_scores(const Config& config);

/// Throws UserError(deck) if no evaluation has the metric checkpoint.best_metric. `objective`: names of the metrics of
/// the objective besides the loss; `counts_tokens`: whether the model ranks tokens.
void check_best_metric(const Config& config, const std::vector<std::string>& objective, bool counts_tokens,
                       const EvaluationScores& scores);

}  // namespace llmtrain
