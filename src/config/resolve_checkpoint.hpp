#pragma once
#include <string_view>

#include "config/config.hpp"

namespace llmtrain {

class DeckLoader;

/// Checks what is kept and exported against the other sections, and sets what follows from them.
void resolve_checkpoint(DeckLoader& deck, Config& config);

/// Reports that the option of `key` needs a best evaluation by a metric that no evaluation has: without validation data
/// only scores of evaluation.tasks are measured.
void check_best_is_measured(DeckLoader& deck, const Config& config, std::string_view key);

}  // namespace llmtrain
