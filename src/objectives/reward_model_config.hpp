#pragma once

namespace llmtrain {

class DeckKeys;

/// [reward]
struct RewardModelConfig {
  double center_coefficient = 0;

  void visit(DeckKeys& keys);
};

}  // namespace llmtrain
