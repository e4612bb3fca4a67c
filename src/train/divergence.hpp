#pragma once
// Divergence handling: which steps are bad, so that their updates are skipped; when the run rolls back to a checkpoint;
// which data it then skips. The guard does not communicate: its inputs are bit-identical on all ranks, so that all
// decide alike in the same step. Its state is stored in checkpoints.

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/manifest.hpp"
#include "config/divergence_config.hpp"

namespace llmtrain {

class DivergenceGuard {
 public:
  explicit DivergenceGuard(const DivergenceConfig& config) : config_(config) {}

  /// Step of the data stream for optimizer step n (both from 0): skipped data steps do not count.
  int64_t data_step(int64_t n) const;

  /// Checks optimizer step n: returns what is wrong with it, empty if nothing; counts it either way. loss_scale: 0 =
  /// none. A step without a target has no loss: only its gradients are checked, and it does not end a series of bad
  /// steps.
  std::string check(int64_t n, std::optional<double> loss, double grad_norm, double loss_scale = 0);
  /// Declares the state after n steps unusable, even if its steps were good.
  void mark_lost(int64_t n, const std::string& why);

  int64_t bad_in_row() const { return bad_in_row_; }
  /// Number of updates in the state, for Adam's bias correction.
  int64_t updates(int64_t steps) const { return steps - bad_steps_; }
  bool must_roll_back() const { return !lost_.empty() || bad_in_row_ >= config_.max_bad_steps; }
  /// True if a checkpoint of the current state may be a rollback target.
  bool sound() const { return lost_.empty() && bad_in_row_ == 0; }
  /// Reason for the rollback.
  std::string reason() const;

  /// Records the save of a sound state. `scheduled`: true if every run of the deck has this checkpoint, whatever
  /// interrupts it. `best`: the step of the best checkpoint so far, or -1.
  void saved(int64_t step, bool scheduled, int64_t best = -1);
  /// Step of the checkpoint to roll back to: the last scheduled one, so that interruptions do not change the result;
  /// before the first of these the last of any kind; -1 if there is none.
  int64_t target() const { return target_; }
  int64_t best_of_target() const { return best_of_target_; }

  struct Range {
    int64_t first, last;  ///< steps of the data [first, last)
  };
  /// Updates the guard after restore() from the checkpoint of `step`; `before` is the guard before the rollback; `best`
  /// as in saved(). The skipped range includes the last bad step, since the same data would give the same result.
  Range roll_back(const DivergenceGuard& before, int64_t step, int64_t best = -1);
  /// Number of rollbacks since the last new checkpoint.
  int64_t rollbacks() const { return rollbacks_; }
  bool may_roll_back() const { return rollbacks_ < config_.max_rollbacks; }

  void save(RunState& state) const;
  /// `own`: true if the state's checkpoints are those of this run.
  void restore(const RunState& state, bool own);

 private:
  std::optional<double> z_score(double loss) const;

  DivergenceConfig config_;
  std::vector<std::pair<int64_t, int64_t>> skipped_;  ///< skipped ranges of the data, in order
  std::deque<double> losses_;                         ///< losses of the last good steps, if spike detection is on
  int64_t bad_steps_ = 0;                             ///< total in the history of the state
  int64_t bad_in_row_ = 0;
  int64_t bad_data_end_ = 0;  ///< end of the data of the last bad step
  int64_t rollbacks_ = 0;
  int64_t target_ = -1;
  int64_t best_of_target_ = -1;
  bool target_scheduled_ = false;
  std::string bad_, lost_;  ///< reasons, for messages
};

}  // namespace llmtrain
