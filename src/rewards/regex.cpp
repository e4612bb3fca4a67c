// regex:PATTERN: 1 for a completion in which the pattern is found.

#include "text/split/regex.hpp"

#include <utility>

#include "rewards/row_reward.hpp"

namespace llmtrain {

namespace {

/// A completion for which the search is given up counts as one without a match.
class RegexReward final : public RowReward {
 public:
  explicit RegexReward(const std::string& pattern) : regex_(pattern, "rewards.functions", Regex::Syntax::perl) {}
  int64_t take_unscored() override { return std::exchange(unscored_, 0); }

 private:
  double reward_of(const RewardRow& row) override {
    const std::optional<bool> found = regex_.found_in(row.completion);
    if (!found) ++unscored_;
    return found.value_or(false) ? 1 : 0;
  }

  Regex regex_;
  int64_t unscored_ = 0;
};

}  // namespace

std::unique_ptr<RewardFunction> make_regex_reward(const std::string& pattern) {
  return std::make_unique<RegexReward>(pattern);
}

}  // namespace llmtrain
