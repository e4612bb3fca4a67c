#pragma once
// What a run does about numbers that go wrong: which steps are bad, so that their updates are left out; when it goes
// back to a checkpoint; which data it then leaves out. Bookkeeping without communication: it is told values that are
// bit-identical on all ranks, so all decide alike in the same step. It is part of the state that checkpoints hold.

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/manifest.hpp"
#include "train/divergence_config.hpp"

namespace llmtrain {

class DivergenceGuard {
 public:
  explicit DivergenceGuard(const DivergenceConfig& config) : config_(config) {}

  /// The step of the data stream that optimizer step n (both from 0) takes: those left out do not count.
  int64_t data_step(int64_t n) const;

  /// Says what is wrong with optimizer step n, empty if nothing; counted either way. loss_scale: 0 = none. A step
  /// without a target has no loss: it is bad by its gradients alone, and does not end a row of bad steps.
  std::string check(int64_t n, std::optional<double> loss, double grad_norm, double loss_scale = 0);
  /// The state after n steps is found to be of no use, whatever its steps were.
  void lose(int64_t n, const std::string& why);

  int64_t bad_in_row() const { return bad_in_row_; }
  /// Updates that made the state: what Adam's bias correction counts.
  int64_t updates(int64_t steps) const { return steps - bad_steps_; }
  bool must_roll_back() const { return !lost_.empty() || bad_in_row_ >= config_.max_bad_steps; }
  /// Whether a checkpoint may be one to go back to.
  bool sound() const { return lost_.empty() && bad_in_row_ == 0; }
  /// Why it must go back.
  std::string reason() const;

  /// A sound state is being saved. `scheduled`: as it is in every run of the deck, whatever interrupts it. `best`: the
  /// checkpoint that is the best so far, or -1.
  void saved(int64_t step, bool scheduled, int64_t best = -1);
  /// The checkpoint to go back to: the last scheduled one, so that interruptions do not change what follows; before the
  /// first of these the last of any kind; -1 if there is none.
  int64_t target() const { return target_; }
  int64_t best_of_target() const { return best_of_target_; }

  struct Range {
    int64_t first, last;  ///< steps of the data [first, last)
  };
  /// After restore() from the checkpoint of `step`, with the guard as it was `before`; `best` as in saved(). What is
  /// left out reaches at least over the last bad step: with the same data everything would come again.
  Range roll_back(const DivergenceGuard& before, int64_t step, int64_t best = -1);
  /// Without a new checkpoint between them.
  int64_t rollbacks() const { return rollbacks_; }
  bool may_roll_back() const { return rollbacks_ < config_.max_rollbacks; }

  void save(RunState& state) const;
  /// `own`: the checkpoints that the state speaks of are those of this run.
  void restore(const RunState& state, bool own);

 private:
  std::optional<double> z_score(double loss) const;

  DivergenceConfig config_;
  std::vector<std::pair<int64_t, int64_t>> skipped_;  ///< of the data, in order
  std::deque<double> losses_;                         ///< of the last good steps, where the rule for spikes is on
  int64_t bad_steps_ = 0;                             ///< in the history of the state
  int64_t bad_in_row_ = 0;
  int64_t bad_data_end_ = 0;  ///< behind the data of the last bad step
  int64_t rollbacks_ = 0;
  int64_t target_ = -1;
  int64_t best_of_target_ = -1;
  bool target_scheduled_ = false;
  std::string bad_, lost_;  ///< what was wrong, for messages
};

}  // namespace llmtrain
