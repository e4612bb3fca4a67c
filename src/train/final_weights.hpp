#pragma once
// Steps at the end of a complete run: the best weights are loaded, the final ones exported.

#include <map>
#include <string>

#include "metrics/run_log.hpp"
#include "parallel/job/runtime.hpp"
#include "train/run_checkpoints.hpp"
#include "train/training_plan.hpp"

namespace llmtrain {

/// Loads the best weights from their checkpoint, which exists since every improvement is saved at once and kept. The
/// moments remain those of the last step. `completed`: the steps of the run. Collective.
void load_best_weights(TrainingPlan& plan, RunCheckpoints& checkpoints, int64_t best_step,
                       CheckpointConfig::Metric metric, int64_t completed, Runtime& runtime, RunLog& log);

/// Writes the adapters of a run that trains them, as PEFT's files. Collective.
void write_adapters(TrainingPlan& plan, const std::string& folder, Communicator& communicator);

/// Writes the model as a Hugging Face folder: with its adapters merged into it, if it has some, whose files in
/// `adapter` are read. `texts`: files of the initial model; `tokenizer`: data.tokenizer.
/// Collective.
void export_final_weights(TrainingPlan& plan, const CheckpointConfig& config, const std::string& folder,
                          const std::string& adapter, const std::map<std::string, std::string>& texts,
                          const std::string& tokenizer, Communicator& communicator, RunLog& log);

}  // namespace llmtrain
