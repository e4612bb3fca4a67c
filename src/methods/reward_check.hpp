#pragma once
// Checks of reward functions against the prompts of a deck, before a run computes anything.

#include "config/config.hpp"

namespace llmtrain {

/// Checks that every row of data.train has the columns that rewards.functions name. Throws UserError(bad_content)
/// "file:line: what". Reads all rows.
void check_columns_of_rows(const Config& config);
/// Starts the programs of rewards.functions, and lets each score the first row with an empty completion. Throws
/// UserError.
void try_reward_programs(const Config& config);

}  // namespace llmtrain
