#include "objectives/grpo_config.hpp"

#include <fmt/format.h>

#include "core/deck/deck.hpp"

namespace llmtrain {

void GrpoConfig::visit(DeckKeys& keys) {
  keys.section("grpo",
               "Learn from rewards of completions in comparison with others of the same prompt (run.task = grpo).",
               Change::breaks, {Task::grpo}, true);
  keys.key("group_size", group_size, {.range = at_least(2), .doc = "Completions of each prompt."});
  keys.key("loss", loss,
           {.doc = "grpo: mean over completions of the mean over their tokens. dapo and bnpo: mean over all tokens of "
                   "the step. dr_grpo: sum over tokens divided by completions times rollout.max_new_tokens. rloo: one "
                   "ratio for each completion, whose advantage is its reward above the mean of the others."});
  keys.key<Fp32Number>("beta", beta,
                       {.range = at_least(0),
                        .doc = "Factor of the divergence from the model as it was before training: a term of the loss "
                               "(estimator k3), with rloo of the rewards (k1). 0: there is no reference model."});
  keys.key<Fp32Number>(
      "epsilon", epsilon,
      {.range = between(0, 1), .doc = "Ratios of probabilities after and before updates are clipped at 1 - epsilon."});
  keys.key<Fp32Number>(
      "epsilon_high", epsilon_high,
      {.range = at_least(0), .doc = "And at 1 + epsilon_high; 0: the same as epsilon. 0.28 with dapo."});
  keys.key<Fp32Number>("delta", delta,
                       {.range = at_least(0),
                        .doc = "Bound of the ratio where the advantage is negative, above 1 + epsilon_high (two-sided "
                               "clip); 0: none."});
  keys.key("scale_rewards", scale_rewards,
           {.doc = "Advantages are divided by the standard deviation of the rewards in the group, in the batch or not "
                   "at all; rloo never divides."});
  keys.key("epochs", epochs, {.range = at_least(1), .doc = "Passes over the completions of a rollout."});
  keys.key("mini_batches", mini_batches,
           {.range = at_least(1), .doc = "Steps of each of these passes, among which the completions are divided."});
}

void GrpoConfig::resolve(DeckLoader& deck) {
  deck.check(delta == 0 || delta > 1 + upper(), {"grpo.delta", "grpo.epsilon", "grpo.epsilon_high"},
             fmt::format("must be above 1 + epsilon_high = {:.6g}, or 0", 1 + upper()));
  const bool rloo = loss == Loss::rloo;
  deck.check(!rloo || delta == 0, {"grpo.delta", "grpo.loss"}, "rloo has no two-sided clip: remove the key");
  deck.check(!rloo || !deck.given("grpo.scale_rewards") || scale_rewards == ScaleRewards::none,
             {"grpo.scale_rewards", "grpo.loss"}, "rloo does not scale rewards: remove the key");
  if (rloo) scale_rewards = ScaleRewards::none;
}

}  // namespace llmtrain
