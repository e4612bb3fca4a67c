#include "config/divergence_config.hpp"

#include "core/deck/deck.hpp"

namespace llmtrain {

void DivergenceConfig::visit(DeckKeys& keys) {
  keys.section("divergence",
               "Handle divergence. A step is bad if its loss or gradient is not finite, or if its "
               "loss is a spike; a bad step changes no weights.",
               Change::applies, training_tasks);
  keys.key("max_bad_steps", max_bad_steps,
           {.unit = "steps",
            .range = at_least(1),
            .doc = "Number of consecutive bad steps after which the run rolls back to its last scheduled checkpoint; "
                   "without one it ends with exit code 79."});
  keys.key("skip_steps", skip_steps,
           {.unit = "steps",
            .range = at_least(0),
            .doc = "Number of steps of data that a rollback skips, from the checkpoint on; in any case it skips all "
                   "data up to the last bad step."});
  keys.key("max_rollbacks", max_rollbacks,
           {.range = at_least(0),
            .doc = "Number of rollbacks without a new checkpoint after which the run ends with exit code 79."});
  keys.key("spike_z_score", spike_z_score,
           {.unit = "standard deviations",
            .range = at_least(0),
            .doc = "A step is also bad if its loss exceeds the mean of spike_window by more than this; 0 = off."});
  keys.key("spike_window", spike_window,
           {.unit = "steps",
            .range = between(8, 10000),
            .doc = "Number of good steps whose losses form the mean; before this number nothing is a spike."});
}

void DivergenceConfig::resolve(DeckLoader& deck) const {
  if (spike_z_score == 0) deck.unused("divergence.spike_window", "no effect with spike_z_score = 0");
}

}  // namespace llmtrain
