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
}

}  // namespace llmtrain
