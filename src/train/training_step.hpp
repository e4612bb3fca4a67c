#pragma once
// One optimizer step: batches, passes, gradient sums, decision, update.

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/exact_sum.hpp"
#include "optim/schedule_config.hpp"
#include "train/run_context.hpp"
#include "train/step_passes.hpp"
#include "train/training_plan.hpp"

namespace llmtrain {

struct StepOptions {
  ScheduleConfig schedule;
  double max_grad_norm = 0;  ///< 0: gradients are not clipped
  uint64_t seed = 0;
  std::string no_graphs;  ///< why passes do not use graphs of the device; empty if they do
};

class TrainingStep {
 public:
  TrainingStep(const RunContext& run, StepOptions options);

  /// Called before each update, which must wait while a save reads the parameters.
  std::function<void()> before_update;
  /// Returns the parameters' hash if it is logged after this many steps.
  std::function<std::optional<uint64_t>(int64_t completed)> hash_if_due;

  /// Takes a logged step on every rank. Returns the values of the nodes and ranks if it ends a log interval. May be
  /// empty.
  std::function<SystemRecord(const StepRecord&)> values_of_ranks;

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

 private:
  StepRecord begin_record(int64_t n) const;
  /// Returns true if the step's gradients may be applied.
  bool check(StepRecord& record, int64_t n);
  /// Reads the step's values, once the sums are on the host.
  void read_values(StepRecord& record, double divisor) const;
  /// scale: factor on gradient sums, unless the device decides about it.
  void update(const StepRecord& record, double scale);
  void log(StepRecord& record, double seconds);

  TrainingPlan& plan_;
  RunProgress& progress_;
  Communicator& communicator_;
  Stream& stream_;
  RunLog& log_;
  StepOptions options_;
  StepPasses passes_;
  ExactSum loss_;  ///< what a hook adds to the loss of the current step
  StepValues values_;
  /// At most one step: the transfer of its values is in progress.
  struct Pending {
    StepRecord record;
    double divisor, begin;
  };
  bool prepared_ = false;
  std::optional<Pending> pending_;
  double known_at_ = 0;        ///< time of the last step's values, seconds
  StepRecord::Phases phases_;  ///< times of the host, since then or since the start of the step
  double longest_ = 0;
};

}  // namespace llmtrain
