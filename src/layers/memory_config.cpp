#include "layers/memory_config.hpp"

#include "core/deck/deck.hpp"

namespace llmtrain {

void MemoryConfig::visit(DeckKeys& keys) {
  keys.section("memory", "Trade memory of a rank against time. Nothing here touches the results.", Change::nothing,
               model_tasks);
  keys.key(
      "recompute", recompute,
      {.doc = "Activations that the backward pass recomputes. none: outputs of norms, and in half precision the sum of "
              "the residual stream and attention; activation: also outputs of activation functions; attention: also "
              "queries, keys, values and the output of attention; block: everything except the input of each block."});
  keys.key("limit", limit,
           {.unit = "bytes",
            .range = at_least(0),
            .doc = "Maximum memory of a rank. A run whose plan and process together (the total of --estimate) exceed "
                   "it ends before the first step; 0 = the rank's share of the memory of its node or GPU."});
}

}  // namespace llmtrain
