#pragma once
// The mapping of the deck to the parts of its task, which do not know the deck.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/config.hpp"
#include "data/dataset.hpp"
#include "data/progress.hpp"
#include "evaluation/evaluation_scores.hpp"
#include "metrics/run_log.hpp"
#include "parallel/job/runtime.hpp"
#include "roles/teacher_file.hpp"
#include "tasks/tasks.hpp"
#include "train/training_loop.hpp"

namespace llmtrain {

/// The training data of the run as batches, with or without the order of its curriculum.
DataStream training_stream(const Config& config, const Dataset& data, const CurriculumConfig& curriculum);
/// Streams, objective and optimizer of the run. The deck must be resolved.
TrainingParts training_parts(const Config& config, const Dataset& data);

/// True if the policy's weights are gathered often between two updates, which memory for all of them would spare.
bool gathers_often(const Config& config, int64_t ranks);
/// The deck must be resolved: vocab_size and precision known. `keeps_gathered`: that of the policy's store.
std::unique_ptr<TrainingPlan> make_training_plan(const Config& config, const Dataset& data,
                                                 const RankPosition& position, bool keeps_gathered = false);

/// Intervals in epochs are in steps here. Facts about the start of the run are left to its task.
TrainingOptions training_options(const Config& config, const TrainingPlan& plan);

/// Reads the files that belong to the initial weights: those that checkpoints store, and those of an export, with the
/// chat of the run; and the tokens that end a sample. Collective.
void read_export_files(TrainingOptions& options, const Config& config, const Dataset& data, Communicator& communicator);

/// Difficulties of the training samples, by number, if they are losses or rarities; otherwise none. Like the values
/// below, all ranks compute them before training and keep them in data.cache. Collective.
std::vector<double> find_difficulties(const Config& config, Runtime& runtime, const Mesh& mesh, const Dataset& data,
                                      const ProgressReport& print);
/// Log-probabilities of the data under the reference, if they are kept in data.cache. Collective.
std::optional<ReferenceValues> find_references(const Config& config, Runtime& runtime, const Mesh& mesh,
                                               const Dataset& data, const ProgressReport& print);
/// Values of the training data by the teacher, if they are kept in data.cache. Collective.
std::optional<TeacherFile> find_teacher(const Config& config, Runtime& runtime, const Mesh& mesh, const Dataset& data,
                                        const ProgressReport& print);

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

/// Ids of the tokenizer's EOS, of the chat template's stop token, and of the EOS in the model's files: config.json and
/// generation_config.json among `texts`, by name. An id can occur twice.
std::vector<int64_t> stop_tokens(const Config& config, const Dataset& data,
                                 const std::map<std::string, std::string>& texts);

/// The same for the files of model.path, or those that a checkpoint stores; rank 0 reads them. Collective.
std::vector<int32_t> find_stop_tokens(const Config& config, const Dataset& data, Communicator& communicator);

}  // namespace llmtrain
