#pragma once
#include <cstdint>
#include <optional>

#include "train/config/model_path.hpp"

namespace llmtrain {

/// Takes batch.sequence_length of evaluate and generate, where the deck gives none, from the limits of the model's
/// folder; its provenance names the source. That of generate is an upper bound until the prompts are known.
/// `loaded`: the model, unless an error of model.path has been reported.
void take_sequence_length(DeckLoader& deck, Config& config, const TaskRules& task,
                          const std::optional<ModelConfig>& loaded, ModelFolders& folders);

/// True if the program, not the deck, chose batch.sequence_length.
bool chooses_sequence_length(const Config& config);

/// The bound of take_sequence_length, or the tokens that the longest prompt and its continuation need if they are
/// fewer.
int64_t fit_sequence_length(const Config& config, int64_t longest_prompt);

}  // namespace llmtrain
