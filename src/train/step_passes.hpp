#pragma once
// Passes of a step: this rank's micro-batches, in the order of the rounds, and idle passes beside those of other ranks.

#include <cstdint>
#include <string>
#include <vector>

#include "data/stream/batch_prefetcher.hpp"
#include "layers/context.hpp"
#include "metrics/run_log.hpp"
#include "train/pass_graphs.hpp"
#include "train/phase_clock.hpp"
#include "train/training_plan.hpp"

namespace llmtrain {

class StepPasses {
 public:
  /// no_graphs: why passes do not use graphs of the device; empty if they do.
  StepPasses(TrainingPlan& plan, SharedRows& rows, Stream& stream, uint64_t seed, const std::string& no_graphs);

  /// Plans a step of the data, and starts to load its first micro-batch. Returns false if its rollout is not there yet.
  bool prepare(int64_t data_step);
  /// Discards a prepared step.
  void discard();
  const StepPlan& step() const { return step_; }  ///< the prepared step
  int64_t count() const { return count_; }        ///< what the objective counts in it
  std::optional<double> curriculum() const { return step_.curriculum; }
  int64_t processed() const;  ///< StepRecord::processed
  /// Number of reduction groups of the prepared step, and which rank computes them when.
  GroupSchedule schedule() const;
  /// Runs the prepared step: gradients, and the objective's sums. `step`: that of the run, from 0; `scale`: factor of
  /// the cotangents; `hashed`: the round of which replay() follows, or -1.
  void run(int64_t step, double scale, PhaseClock& clock, int64_t hashed = -1);
  /// Once more computes the groups that a rank with the same units had in the hashed round. Returns the hash of their
  /// gradients, GradientReducer::hash(). Collective, before the next step is prepared.
  uint64_t replay(int64_t rank, PhaseClock& clock);
  const StepRecord::RankWork& own() const { return own_; }  ///< of the last step that ran
  const PassGraphs& graphs() const { return graphs_; }

 private:
  void set_step(int64_t step);
  struct Range {
    int64_t first, end;
  };
  /// The micro-batches of a group of rows; none of -1.
  Range micro_batches_of(int64_t row_group) const;
  void add_local(int64_t row_group);
  void request_first();
  void run_round(int64_t row_group, PhaseClock& clock);
  void run_micro_batch(PhaseClock& clock);
  void run_passes(ProfileSpan& phase, const Batch& batch, const Batch& rows, const TokenStatistics& statistics,
                  const TokenCotangents& cotangents);
  void forward(const Batch& batch, const Batch& rows);
  void differentiate(const Batch* rows, const TokenStatistics& statistics, const TokenCotangents& cotangents);
  void run_idle_pass(PhaseClock& clock);

  TrainingPlan& plan_;
  SharedRows& rows_;
  DeviceBuffer device_step_;  ///< Context::device_step, where graphs are used
  Context ctx_;
  BatchPrefetcher prefetcher_;
  PassGraphs graphs_;
  DocumentColumns documents_;  ///< of the current micro-batch, with their references
  StepPlan step_;
  int64_t count_ = 0;
  std::vector<int64_t> local_micro_batches_;  ///< micro-batches of this rank, in the order of the rounds
  size_t next_local_ = 0;
  bool replays_ = false;  ///< what runs has been counted before
  StepRecord::RankWork own_;
};

}  // namespace llmtrain
