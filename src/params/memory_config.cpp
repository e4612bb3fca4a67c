#include "params/memory_config.hpp"

#include "core/deck/deck.hpp"

namespace llmtrain {

void MemoryConfig::visit(DeckKeys& keys) {
  keys.section("memory", "Memory of a rank. Nothing here touches the results.", Change::nothing);
  keys.key("recompute", recompute,
           {.doc = "Activations that the backward pass computes again instead of keeping them. none: results of norms, "
                   "and in half precision the sum of the residual stream and attention; activation: and of activation "
                   "functions; attention: and queries, keys, values and the output of attention; block: everything "
                   "but the input of each block."});
  keys.key("limit", limit,
           {.unit = "bytes",
            .range = at_least(0),
            .doc = "A plan that exceeds it, together with the process (the total of --estimate), stops before the "
                   "first step; 0 = the rank's share of the memory of its node or GPU."});
}

}  // namespace llmtrain
