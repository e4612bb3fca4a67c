// Reward models: a score of a text, higher for the chosen one of a pair.

#include "methods/method.hpp"

namespace llmtrain {

namespace {

class RewardModeling : public Method {
 public:
  RewardModeling() : Method(Task::reward) {}

  std::optional<ModelConfig::Head> head(const Config& /*config*/) const override { return ModelConfig::Head::score; }
  bool has_dropout() const override { return false; }
  std::unique_ptr<Objective> objective(const Config& config, const Dataset& /*data*/) const override {
    return make_reward(config.reward);
  }
};

}  // namespace

const TaskRules& reward_task() {
  static const RewardModeling method;
  return method;
}

}  // namespace llmtrain
