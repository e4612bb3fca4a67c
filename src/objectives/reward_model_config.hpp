#pragma once

namespace llmtrain {

class DeckKeys;

/// [reward]
struct RewardConfig {
  double center_coefficient = 0;

  void visit(DeckKeys& keys);
};

}  // namespace llmtrain
