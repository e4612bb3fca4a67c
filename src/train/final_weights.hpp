#pragma once
// Steps at the end of a complete run: the best weights are loaded, the final ones exported.

#include <string>

#include "data/data_config.hpp"
#include "hf/export.hpp"
#include "metrics/run_log.hpp"
#include "parallel/job/runtime.hpp"
#include "train/run_checkpoints.hpp"
#include "train/training_plan.hpp"

namespace llmtrain {

/// Loads the best weights from their checkpoint, which exists since every improvement is saved at once and kept. The
/// moments remain those of the last step. `completed`: the steps of the run. Collective.
void load_best_weights(TrainingPlan& plan, RunCheckpoints& checkpoints, int64_t best_step,
                       CheckpointConfig::Metric metric, int64_t completed, Runtime& runtime, RunLog& log);

/// Writes the model as a Hugging Face folder. `options` has the files of the initial model and the run's chat; `data`
/// names the tokenizer. Collective.
void export_final_weights(TrainingPlan& plan, const CheckpointConfig& config, const std::string& folder,
                          ExportOptions options, const DataConfig& data, Communicator& communicator, RunLog& log);

}  // namespace llmtrain
