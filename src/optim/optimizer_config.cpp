#include "optim/optimizer_config.hpp"

#include "core/deck/deck.hpp"

namespace llmtrain {

void OptimizerConfig::visit(DeckKeys& keys) {
  keys.section("optimizer", "Set how gradients change the weights.", Change::applies, training_tasks);
  keys.key("name", name, {.doc = "AdamW in torch's order of operations.", .change = Change::breaks});
  keys.key<Fp32Number>("beta1", beta1, {.range = from_below(0, 1), .doc = "Decay of the first moment."});
  keys.key<Fp32Number>("beta2", beta2, {.range = from_below(0, 1), .doc = "Decay of the second moment."});
  keys.key<Fp32Number>("epsilon", epsilon, {.range = above(0), .doc = "Added to the root of the second moment."});
  keys.key<Fp32Number>("weight_decay", weight_decay,
                       {.range = at_least(0),
                        .doc = "Decoupled weight decay, multiplied by the learning rate; for matrices and embeddings "
                               "only, never for biases and norms."});
  keys.key<Fp32Number>("max_grad_norm", max_grad_norm,
                       {.range = at_least(0),
                        .doc = "Maximum global norm of the gradients, which are scaled down to it; 0 = no clipping."});
}

}  // namespace llmtrain
