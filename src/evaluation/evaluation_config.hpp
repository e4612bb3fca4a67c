#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace llmtrain {

class DeckKeys;
class DeckLoader;

/// [evaluation]; every_steps = 0 means never.
struct EvaluationConfig {
  int64_t every_steps = 500;
  double every_epochs = 0;  ///< above 0: replaces every_steps once the data are known
  bool at_start = false;
  bool at_end = true;
  int64_t batches = 0;                  ///< batches of batch.global sequences; 0 = all
  int64_t early_stopping_patience = 0;  ///< evaluations without a better value; 0 = off
  double early_stopping_threshold = 0;  ///< minimum improvement that counts as better
  bool load_best_at_end = false;
  int64_t stride = 0;                ///< tokens between windows of task = evaluate; 0 = no overlap
  std::vector<std::string> tasks;    ///< files of rows with choices
  std::vector<std::string> metrics;  ///< of texts, by names
  int64_t max_new_tokens = 128;      ///< of an answer
  bool log_samples = false;          ///< write the log-probabilities of the tasks' rows

  void visit(DeckKeys& keys);
  void resolve(DeckLoader& deck);
};

}  // namespace llmtrain
