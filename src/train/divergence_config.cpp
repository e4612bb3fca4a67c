#include "train/divergence_config.hpp"

#include "core/deck/deck.hpp"

namespace llmtrain {

void DivergenceConfig::visit(DeckKeys& keys) {
  keys.section(
      "divergence",
      "What happens when numbers go wrong. The update of a bad step is left out: one whose loss or gradient is "
      "not finite, or whose loss is a spike.",
      Change::applies);
  keys.key(
      "max_bad_steps", max_bad_steps,
      {.unit = "steps",
       .range = at_least(1),
       .doc = "After so many bad steps in a row the run goes back to its last scheduled checkpoint; without one it "
              "ends with exit code 79."});
  keys.key("skip_steps", skip_steps,
           {.unit = "steps",
            .range = at_least(0),
            .doc = "It then leaves out the data of this many steps from there on, and in any case all up to the last "
                   "bad step."});
  keys.key("max_rollbacks", max_rollbacks,
           {.range = at_least(0),
            .doc = "It goes back so many times without reaching a new checkpoint, then it ends with exit code 79."});
  keys.key("spike_z_score", spike_z_score,
           {.unit = "standard deviations",
            .range = at_least(0),
            .doc = "A step is bad, too, if its loss is further than this above the mean of spike_window; 0 = off."});
  keys.key("spike_window", spike_window,
           {.unit = "steps",
            .range = between(8, 10000),
            .doc = "Good steps whose losses a loss is compared with; until there are so many nothing is a spike."});
}

void DivergenceConfig::resolve(DeckLoader& deck) const {
  if (spike_z_score == 0) deck.unused("divergence.spike_window", "no effect with spike_z_score = 0");
}

}  // namespace llmtrain
