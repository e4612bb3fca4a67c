#pragma once
#include <string>
#include <string_view>

#include "rewards/reward_function.hpp"

namespace llmtrain {

/// A function that scores rows one by one.
class RowReward : public RewardFunction {
 public:
  void score(std::span<const RewardRow> rows, std::span<double> rewards, const std::function<void()>& pause) final {
    for (size_t i = 0; i < rows.size(); ++i) {
      rewards[i] = reward_of(rows[i]);
      pause();
    }
  }

 private:
  virtual double reward_of(const RewardRow& row) = 0;
};

/// Returns the value of a column as text; that of a number or a bool is its JSON. Throws UserError(bad_content).
std::string column_text(std::string_view columns, const std::string& column);
/// Returns the last number of a column. Throws UserError(bad_content).
double column_number(std::string_view columns, const std::string& column);

}  // namespace llmtrain
