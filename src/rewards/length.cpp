// length:N: punishes completions of more than N tokens.

#include <algorithm>

#include "rewards/row_reward.hpp"

namespace llmtrain {

namespace {

class LengthReward final : public RowReward {
 public:
  explicit LengthReward(int64_t length) : length_(length) {}

 private:
  double reward_of(const RewardRow& row) override {
    const int64_t beyond = std::clamp<int64_t>(std::ssize(row.completion_ids) - length_, 0, length_);
    return beyond == 0 ? 0 : -static_cast<double>(beyond) / static_cast<double>(length_);
  }

  int64_t length_;
};

}  // namespace

std::unique_ptr<RewardFunction> make_length_reward(int64_t length) { return std::make_unique<LengthReward>(length); }

}  // namespace llmtrain
