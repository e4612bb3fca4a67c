#pragma once
// Steps at the end of a complete run: the best weights are loaded, the final ones exported.

#include <string>
#include <vector>

#include "hf/export.hpp"
#include "train/run_checkpoints.hpp"
#include "train/run_progress.hpp"

namespace llmtrain {

/// Loads the best weights from their checkpoint, which exists since every improvement is saved at once and kept. The
/// moments remain those of the last step. `completed`: the steps of the run. Collective.
void load_best_weights(const RunContext& run, RunCheckpoints& checkpoints, const std::string& metric,
                       int64_t completed);

/// Writes the adapters of a run that trains them, as PEFT's files. Collective.
void write_adapters(const RunContext& run, const std::string& folder);

/// Writes the model as a Hugging Face folder: with its adapters merged into it, if it has some, whose files in
/// `adapter` are read. `options` has the folder, the files of the initial model and the run's chat; `tokenizer`: its
/// files, or empty. Collective.
void export_final_weights(const RunContext& run, const CheckpointConfig& config, ExportOptions options,
                          const std::string& adapter, const std::string& tokenizer,
                          const std::vector<std::string>& added_tokens);

}  // namespace llmtrain
