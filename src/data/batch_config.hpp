#pragma once
#include <cstdint>

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// [batch]: after load_config both `global` and `gradient_accumulation_steps` are set, global = micro * accumulation.
struct BatchConfig {
  int64_t sequence_length = 0;              ///< tokens, T
  int64_t micro = 1;                        ///< sequences of a forward pass
  int64_t global = 0;                       ///< sequences of an optimizer step
  int64_t gradient_accumulation_steps = 0;  ///< micro-batches of an optimizer step, over all ranks

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck);
};

}  // namespace llmtrain
