#include "objectives/ppo_config.hpp"

#include "core/deck/deck.hpp"

namespace llmtrain {

namespace {

void visit_rewards(PpoConfig& config, DeckKeys& keys) {
  keys.key("reward_model", config.reward_model,
           {.doc = "Folder of the model that scores completions (run.task = reward trains one)."});
  keys.key(
      "value_model", config.value_model,
      {.doc = "Folder of the model that the critic starts from; empty: reward_model. policy: the critic is a new head "
              "on the policy's last hidden states, without a separate model."});
  keys.key("same_text", config.same_text,
           {.doc = "Let a reward model of another tokenizer score the text of completions; false: refuse it."});
  keys.key<Fp32Number>("kl_coefficient", config.kl_coefficient,
                       {.range = at_least(0),
                        .doc = "Factor of the divergence from the model as it was before training, which is subtracted "
                               "from the reward of each token."});
  keys.key("kl_estimator", config.kl_estimator,
           {.doc = "Estimator of that divergence from a token's log-ratio r to the reference. k1: -r. k3: exp(r) - 1 - "
                   "r, which is never negative."});
  keys.key<Fp32Number>("adaptive_kl_target", config.adaptive_kl_target,
                       {.unit = "nats",
                        .range = at_least(0),
                        .doc = "Adapt kl_coefficient so that the divergence of a completion stays near this number; "
                               "6 is usual. 0: a constant coefficient."});
  keys.key(
      "whiten_rewards", config.whiten_rewards,
      {.doc = "Divide the distances of tokens' rewards from their mean by the standard deviation over the rollout."});
  keys.key<Fp32Number>(
      "missing_eos_penalty", config.missing_eos_penalty,
      {.range = at_least(0), .doc = "Penalty on the score of a completion that does not end by itself."});
  keys.key<Fp32Number>("score_scale", config.score_scale,
                       {.range = above(0), .doc = "Factor of the scores, before score_clip and missing_eos_penalty."});
  keys.key<Fp32Number>("score_clip", config.score_clip,
                       {.range = at_least(0), .doc = "Limit of the scores' absolute value; 0: none."});
}

void visit_losses(PpoConfig& config, DeckKeys& keys) {
  keys.key<Fp32Number>("gamma", config.gamma,
                       {.range = between(0, 1), .doc = "Discount of the rewards of later tokens."});
  keys.key<Fp32Number>("lambda", config.lambda,
                       {.range = between(0, 1),
                        .doc = "Weight of later values in advantages (generalised advantage estimation): 0 has little "
                               "variance, 1 no bias by the critic."});
  keys.key<Fp32Number>("clip", config.clip,
                       {.range = above(0),
                        .doc = "Ratios of probabilities after and before updates are clipped at 1 - "
                               "clip and 1 + clip."});
  keys.key<Fp32Number>(
      "value_clip", config.value_clip,
      {.range = above(0), .doc = "Largest change of the critic's values by the updates of a rollout."});
  keys.key<Fp32Number>("value_coefficient", config.value_coefficient,
                       {.range = at_least(0), .doc = "Factor of the critic's loss."});
  keys.key<Fp32Number>("entropy_coefficient", config.entropy_coefficient,
                       {.range = at_least(0), .doc = "Factor of the policy's mean entropy, which the loss rewards."});
  keys.key("epochs", config.epochs, {.range = at_least(1), .doc = "Passes over the completions of a rollout."});
  keys.key("mini_batches", config.mini_batches,
           {.range = at_least(1), .doc = "Steps of each of these passes, among which the completions are divided."});
}

}  // namespace

void PpoConfig::visit(DeckKeys& keys) {
  keys.section("ppo", "Learn from a reward model, with a critic (run.task = ppo).", Change::breaks, {Task::ppo}, true);
  visit_rewards(*this, keys);
  visit_losses(*this, keys);
}

void PpoConfig::resolve(DeckLoader& deck) {
  deck.check(adaptive_kl_target == 0 || kl_coefficient > 0, {"ppo.adaptive_kl_target", "ppo.kl_coefficient"},
             "a coefficient of 0 cannot be adapted: raise ppo.kl_coefficient, from which it begins");
}

}  // namespace llmtrain
