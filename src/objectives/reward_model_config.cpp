#include "objectives/reward_model_config.hpp"

#include "core/deck/deck.hpp"

namespace llmtrain {

void RewardModelConfig::visit(DeckKeys& keys) {
  keys.section("reward",
               "Train a reward model: the score of a chosen answer shall be above that of the rejected one, by the "
               "column margin where the rows have it (run.task = reward).",
               Change::breaks, {Task::reward}, true);
  keys.key<Fp32Number>("center_coefficient", center_coefficient,
                       {.range = at_least(0),
                        .doc = "Factor of the squared sum of a pair's two scores in the loss, which keeps their mean "
                               "near 0; 0.01 is usual."});
}

}  // namespace llmtrain
