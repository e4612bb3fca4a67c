#pragma once
#include <cstdint>
#include <optional>

#include "train/config/model_path.hpp"

namespace llmtrain {

class RunLog;

/// Takes batch.sequence_length of evaluate and generate, where the deck gives none, from the limits of the model's
/// folder; its provenance names the source. That of generate is an upper bound until the prompts are known.
/// `loaded`: the model, unless an error of model.path has been reported.
void take_sequence_length(DeckLoader& deck, Config& config, const TaskRules& task,
                          const std::optional<ModelConfig>& loaded, ModelFolders& folders);

/// True if the program, not the deck, chose batch.sequence_length.
bool chooses_sequence_length(const Config& config);

/// Shortens the bound of take_sequence_length to what the longest prompt and its continuation need.
void fit_sequence_length(Config& config, int64_t longest_prompt);

/// Prints batch.sequence_length and its source, if the program chose it.
void print_length(RunLog& log, const Config& config);

}  // namespace llmtrain
