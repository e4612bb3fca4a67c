#pragma once
// Rewards of a program of the user: command:PROGRAM.

#include <memory>
#include <string>

#include "rewards/reward_function.hpp"

namespace llmtrain {

/// Longest line of a program's output, bytes.
inline constexpr size_t max_reward_line = size_t{1} << 16;

/// Starts the program, which runs until the function ends: `command` is its name, found in PATH, and its arguments,
/// separated by white space. For each row it gets a line {"prompt": "...", "completion": "...", "ended": true,
/// "columns": {...}} and writes a line, a number or {"reward": number}, in this order; it must flush its output. Its
/// stderr is passed on to that of this process while it scores. Throws UserError(missing_input) if it cannot be
/// started.
std::unique_ptr<RewardFunction> make_command_reward(const std::string& command, Duration time_limit);

}  // namespace llmtrain
