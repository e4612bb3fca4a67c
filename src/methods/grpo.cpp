// Group-relative policy optimization, and RLOO: rewards relative to those of other completions of a prompt.

#include <fmt/format.h>

#include "methods/reinforcement.hpp"

namespace llmtrain {

namespace {

class GroupOptimization : public ReinforcementMethod {
 public:
  GroupOptimization() : ReinforcementMethod(Task::grpo) {}

  void check(DeckLoader& deck, Config& config) const override {
    ReinforcementMethod::check(deck, config);
    deck.check(!config.rewards.functions.empty(), {"rewards.functions"},
               "run.task = grpo needs at least one function, e.g. exact:answer");
    config.grpo.resolve(deck);
    if (!deck.sound({"grpo.group_size", "batch.global"}) || config.grpo.group_size <= 0) return;
    const int64_t sequences = config.batch.global * config.grpo.mini_batches;
    deck.check(sequences % config.grpo.group_size == 0, {"batch.global", "grpo.group_size"},
               fmt::format("an iteration has {} completions, which is not a multiple of the group size {}", sequences,
                           config.grpo.group_size));
  }

  std::unique_ptr<Objective> objective(const Config& config, const Dataset& /*data*/) const override {
    return make_grpo(config.grpo);
  }

  std::unique_ptr<BatchSource> batches(const Config& config, const Dataset& data,
                                       const DataStream& samples) const override {
    RolloutParts rollout = parts(config, data, config.grpo.epochs, config.grpo.mini_batches);
    rollout.advantages = make_group_estimator(config.grpo);
    rollout.group_size = config.grpo.group_size;
    return std::make_unique<Rollouts>(std::move(rollout), samples);
  }

 private:
  bool has_reference(const Config& config) const override { return config.grpo.beta != 0; }
};

}  // namespace

const TaskRules& grpo_task() {
  static const GroupOptimization method;
  return method;
}

}  // namespace llmtrain
