#pragma once
#include <cstdint>

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// [divergence]
struct DivergenceConfig {
  int64_t max_bad_steps = 3;
  int64_t skip_steps = 100;
  int64_t max_rollbacks = 3;
  double spike_z_score = 0;  ///< 0 = off
  int64_t spike_window = 128;

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck) const;  ///< checks only
};

}  // namespace llmtrain
