#pragma once
// Reward functions: they score the completions of a rollout.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rewards/reward_functions_config.hpp"

namespace llmtrain {

/// A finished sequence as reward functions see it.
struct RewardRow {
  std::string prompt, completion;           ///< texts; the completion without its stop token
  std::span<const int32_t> completion_ids;  ///< with its stop token
  bool ended = false;                       ///< True if a stop token or text ended it, not its maximum length
  std::string_view columns;                 ///< other columns of the prompt's row, JSON text of an object
};

class RewardFunction {
 public:
  virtual ~RewardFunction() = default;
  /// Writes a reward for each row, NaN for none. Throws UserError(bad_content), on this rank alone. `pause` is called
  /// between rows or several times a second; it may throw, after which nothing more can be scored.
  virtual void score(std::span<const RewardRow> rows, std::span<double> rewards,
                     const std::function<void()>& pause) = 0;
  /// Number of rows since the last call whose reward is 0 since they could not be scored, for a warning.
  virtual int64_t take_unscored() { return 0; }
};

/// Makes the function of this kind. To add one, add a name to RewardSpec::Kind, a file with a class, and a line in
/// reward_function.cpp. Scores: exact and regex 1 or 0; number 1 or 0 by value; length 0 up to N tokens, then falling
/// linearly to -1 at 2 N and more (the soft punishment of overlong answers of DAPO, Yu et al. 2025, with a buffer of N
/// tokens). A command is started here; `time_limit` is that of each batch. Not for Kind::model.
std::unique_ptr<RewardFunction> make_reward_function(const RewardSpec& spec, Duration time_limit);

std::unique_ptr<RewardFunction> make_exact_reward(const std::string& column);
std::unique_ptr<RewardFunction> make_number_reward(const std::string& column);
std::unique_ptr<RewardFunction> make_regex_reward(const std::string& pattern);
std::unique_ptr<RewardFunction> make_length_reward(int64_t length);
/// Starts the program, which runs until the function ends: `command` is its name, found in PATH, and its arguments,
/// separated by white space. For each row it gets a line {"prompt": "...", "completion": "...", "ended": true,
/// "columns": {...}} and writes a line, a number or {"reward": number}, in this order; it must flush its output. Its
/// stderr is passed on to that of this process while it scores. Throws UserError(missing_input) if it cannot be
/// started.
std::unique_ptr<RewardFunction> make_command_reward(const std::string& command, Duration time_limit);

/// Throws UserError(bad_content) if a row with these columns, JSON text of an object, cannot be scored.
void check_reward_columns(const RewardSpec& spec, std::string_view columns);

/// Names of the functions of the deck in metrics, rewards/NAME/mean: their kinds (a second one exact_2).
std::vector<std::string> reward_names(const RewardFunctionsConfig& config);

/// Returns the last number of a text: digits with an optional sign, thousands separators (1,234), fraction and
/// exponent. A sign counts if no letter, digit or bracket is before it, and may stand before a $.
std::optional<double> last_number(std::string_view text);

}  // namespace llmtrain
