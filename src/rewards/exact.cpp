// exact:COLUMN: 1 for a completion that equals the column of its row, without white space at the ends.

#include <utility>

#include "rewards/row_reward.hpp"

namespace llmtrain {

namespace {

std::string_view stripped(std::string_view text) {
  constexpr std::string_view blank = " \t\r\n\v\f";
  const size_t begin = text.find_first_not_of(blank);
  return begin == std::string_view::npos ? "" : text.substr(begin, text.find_last_not_of(blank) - begin + 1);
}

class ExactReward final : public RowReward {
 public:
  explicit ExactReward(std::string column) : column_(std::move(column)) {}

 private:
  double reward_of(const RewardRow& row) override {
    return stripped(row.completion) == stripped(column_text(row.columns, column_)) ? 1 : 0;
  }

  std::string column_;
};

}  // namespace

std::unique_ptr<RewardFunction> make_exact_reward(const std::string& column) {
  return std::make_unique<ExactReward>(column);
}

}  // namespace llmtrain
