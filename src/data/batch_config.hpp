#pragma once
#include <cstdint>
#include <string>

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// [batch]: after load_config both `global` and `gradient_accumulation_steps` are set, global = micro * accumulation.
struct BatchConfig {
  int64_t sequence_length = 0;              ///< T, in tokens
  int64_t micro = 1;                        ///< sequences per forward pass
  int64_t global = 0;                       ///< sequences per optimizer step
  int64_t gradient_accumulation_steps = 0;  ///< micro-batches per optimizer step, over all ranks

  void visit(DeckKeys& keys);
  /// Takes the length of a sample that the deck does not give. `source` says where it comes from.
  void take_length(DeckLoader& deck, int64_t length, const std::string& source);
  /// `max_tokens`: data.max_tokens_per_batch; above 0 it limits micro-batches, of which a step has up to `global`.
  void resolve(DeckLoader& deck, int64_t max_tokens);
};

}  // namespace llmtrain
