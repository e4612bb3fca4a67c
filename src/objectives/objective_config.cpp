#include "objectives/objective_config.hpp"

#include "core/deck/deck.hpp"

namespace llmtrain {

void ObjectiveConfig::visit(DeckKeys& keys) {
  keys.section(
      "objective",
      "Terms of the training loss beside the cross-entropy. Each is a metric of its own; evaluations measure the "
      "cross-entropy alone.",
      Change::breaks, {Task::pretrain, Task::sft}, true);
  keys.key<Fp32Number>("z_loss", z_loss,
                       {.range = at_least(0),
                        .doc = "Factor of the squared logarithm of the softmax's denominator, which keeps logits from "
                               "drifting; 1e-4 is usual."});
  keys.key<Fp32Number>("label_smoothing", label_smoothing,
                       {.range = from_below(0, 1),
                        .doc = "Fraction of each target that is spread over the whole vocabulary; 0.1 is usual."});
  keys.key<Fp32Number>(
      "entropy_bonus", entropy_bonus,
      {.range = at_least(0),
       .doc = "Factor of the entropy of each distribution, in nats, which is subtracted from the loss."});
  keys.key<Fp32Number>("router_aux", router_aux,
                       {.range = at_least(0),
                        .doc = "With experts: factor of E times the sum over experts of the share of tokens that chose "
                               "one and its mean score, over all layers with experts together. Equal loads give "
                               "experts_per_token.",
                        .automatic = "the model's, where its config.json has output_router_logits, or the family's; "
                                     "0 with model.router_score = sigmoid",
                        .tasks = training_tasks});
  keys.key<Fp32Number>("router_z_loss", router_z_loss,
                       {.range = at_least(0),
                        .doc = "With experts: factor of the mean squared logarithm of the denominator of a router's "
                               "softmax; 1e-3 is usual.",
                        .tasks = training_tasks});
  keys.key<Fp32Number>("router_bias_rate", router_bias_rate,
                       {.range = at_least(0),
                        .doc = "Balances experts without a loss: after a step, the bias by which a router chooses an "
                               "expert grows by this number if the step chose it less often than the mean, and shrinks "
                               "by it if more often; 1e-3 is usual in training from the start. 0: biases stay. So do "
                               "those that are frozen.",
                        .tasks = training_tasks});
}

}  // namespace llmtrain
