#pragma once
// One optimizer step: batches, passes, gradient sums, decision, update.
//
// Sums over all ranks determine whether the update of a step takes place, and the factor that clips its gradients. If
// the device adds them and decides, the host queues the update, and the next step's passes, in advance: the device
// never waits for the host. The host reads, checks and logs the values of a step after it has queued the passes of the
// next one. If they cause a rollback, that next step is discarded.
//
// Otherwise the host decides, and waits for the device: if the sums go through MPI; if it makes the update; with fp16,
// whose scale in the next step depends on this one; and if losses are compared with earlier ones (spike_z_score). The
// device idles while this answer travels and the first kernel of the update is launched; meanwhile the next batch is
// read, and the next forward pass is queued while the update runs.

#include <optional>
#include <string>
#include <utility>

#include "core/exact_sum.hpp"
#include "optim/schedule_config.hpp"
#include "train/run/replay.hpp"
#include "train/run_progress.hpp"
#include "train/step_passes.hpp"
#include "train/training_plan.hpp"

namespace llmtrain {

struct StepOptions {
  ScheduleConfig schedule;
  double max_grad_norm = 0;     ///< 0: gradients are not clipped
  double router_bias_rate = 0;  ///< see move_router_biases()
  uint64_t seed = 0;
  int64_t replay_every = 0;  ///< steps; 0: no replays
  std::string no_graphs;     ///< why passes do not use graphs of the device; empty if they do
};

/// The rest of a run, of which a step asks what it does not know.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  /// Called before each update, which must wait while a save reads the parameters.
  virtual void before_update() {}
  /// Returns the parameters' hash if it is logged after this many steps.
  virtual std::optional<uint64_t> hash_if_due(int64_t completed) = 0;
  /// Takes the findings of a replay in the step after `completed` ones, before its update. Collective.
  virtual void replayed(int64_t /*completed*/, const ReplayFindings& /*findings*/) {}
  /// Takes a finished step on every rank. Returns the values of the nodes and ranks if it ends a log interval.
  virtual SystemRecord values_of_ranks(const StepRecord& /*record*/) { return {}; }
};

class TrainingStep {
 public:
  TrainingStep(const RunContext& run, StepOptions options, StepObserver& observer);

  /// Plans step n (from 0), and starts to load its first micro-batch, unless its rollout is not there yet.
  void prepare(int64_t n);
  bool is_prepared() const { return prepared_; }
  /// Discards a prepared step.
  void discard() {
    if (std::exchange(prepared_, false)) passes_.discard();
  }
  /// Queues step n, completely if the device decides about its update; the host then reads its values after it has
  /// queued the next step's passes, or in finish_pending(). Returns false if the values of the step before cause a
  /// rollback; step n is then discarded.
  bool run(int64_t n);
  /// True if the device decided about a step whose values the host has not read. False during evaluations and saves.
  bool is_pending() const { return pending_.has_value(); }
  /// Waits for the values of the pending step, checks and logs it.
  void finish_pending();
  int64_t prepared_count() const { return passes_.count(); }  ///< what the objective counts in the prepared step
  double longest() const { return longest_; }                 ///< seconds of the longest step
  const PassGraphs& graphs() const { return passes_.graphs(); }
  const std::optional<Replay>& replay() const { return replay_; }

 private:
  StepRecord begin_record(int64_t n) const;
  void begin_sums(double count);
  void run_passes(int64_t n, double scale);
  void call_hook(StepRecord& record);
  void decide_on_device(double divisor);
  /// Returns true if the step's gradients may be applied.
  bool check(StepRecord& record);
  /// Reads the step's values, once the sums are on the host. `divisor`: that of the gradient sums, as elsewhere.
  void read_values(StepRecord& record, double divisor) const;
  void update(const StepRecord& record, double divisor);
  /// At most one step: the transfer of its values is in progress.
  struct Pending {
    StepRecord record;
    double divisor, begin;
  };
  void finish(Pending step);
  void log(const StepRecord& record);

  TrainingPlan& plan_;
  RunProgress& progress_;
  Communicator& communicator_;
  Stream& stream_;
  RunLog& log_;
  StepOptions options_;
  StepObserver& observer_;
  StepPasses passes_;
  ExactSum loss_;  ///< what a hook adds to the loss of the current step
  StepValues values_;
  std::optional<Replay> replay_;
  bool prepared_ = false;
  std::optional<Pending> pending_;
  PhaseClock clock_;
  double longest_ = 0;
};

}  // namespace llmtrain
