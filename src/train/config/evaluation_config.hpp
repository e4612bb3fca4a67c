#pragma once
#include <cstdint>

namespace llmtrain {

class DeckKeys;
class DeckLoader;
struct Config;

/// [evaluation]; every_steps = 0 means never.
struct EvaluationConfig {
  int64_t every_steps = 500;
  bool at_start = false;
  bool at_end = true;
  int64_t batches = 0;                  ///< of batch.global sequences each; 0 = all
  int64_t early_stopping_patience = 0;  ///< evaluations without a better value; 0 = off
  double early_stopping_threshold = 0;  ///< better means by more than this
  bool load_best_at_end = false;
  int64_t stride = 0;  ///< tokens from window to window of task = evaluate; 0 = no overlap

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck, const Config& config) const;  ///< checks only
};

}  // namespace llmtrain
