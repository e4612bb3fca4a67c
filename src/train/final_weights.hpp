#pragma once
// Steps at the end of a complete run: the best weights are loaded, the final ones exported.

#include <map>
#include <string>

#include "train/run_checkpoints.hpp"
#include "train/run_context.hpp"

namespace llmtrain {

/// Loads the best weights from their checkpoint, which exists since every improvement is saved at once and kept. The
/// moments remain those of the last step. `completed`: the steps of the run. Collective.
void load_best_weights(const RunContext& run, RunCheckpoints& checkpoints, CheckpointConfig::Metric metric,
                       int64_t completed);

/// Writes the adapters of a run that trains them, as PEFT's files. Collective.
void write_adapters(const RunContext& run, const std::string& folder);

/// Writes the model as a Hugging Face folder: with its adapters merged into it, if it has some, whose files in
/// `adapter` are read. `texts`: files of the initial model; `tokenizer`: data.tokenizer.
/// Collective.
void export_final_weights(const RunContext& run, const CheckpointConfig& config, const std::string& folder,
                          const std::string& adapter, const std::map<std::string, std::string>& texts,
                          const std::string& tokenizer);

}  // namespace llmtrain
