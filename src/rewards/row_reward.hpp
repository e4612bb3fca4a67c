#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "rewards/reward_function.hpp"

namespace llmtrain {

/// Makes a function that scores rows one by one: `reward_of` returns nothing for a row that cannot be scored, whose
/// reward is 0.
std::unique_ptr<RewardFunction> make_row_reward(std::function<std::optional<double>(const RewardRow& row)> reward_of);

/// Returns the value of a column as text; that of a number or a bool is its JSON. Throws UserError(bad_content).
std::string column_text(std::string_view columns, const std::string& column);
/// Returns the last number of a column. Throws UserError(bad_content).
double column_number(std::string_view columns, const std::string& column);

}  // namespace llmtrain
