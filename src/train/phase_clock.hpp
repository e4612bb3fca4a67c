#pragma once
#include <algorithm>
#include <utility>

#include "core/clock.hpp"
#include "metrics/records.hpp"

namespace llmtrain {

/// Times of a run's steps: the host's by phase, in laps that follow each other, and the wall time of a step.
class PhaseClock {
 public:
  using Phase = double StepRecord::Phases::*;

  void reset() { phases_ = {}; }
  void start_lap() { lap_ = now(); }
  /// Adds the lap to a phase, and starts the next one. Returns its seconds.
  double lap(Phase phase) {
    const double end = now(), seconds = end - std::exchange(lap_, end);
    phases_.*phase += seconds;
    return seconds;
  }
  /// Sets the times of a step that began at `begin`.
  void finish(StepRecord& record, double begin) {
    finished_at_ = now();
    record.seconds = finished_at_ - begin;
    record.phases = std::exchange(phases_, {});
  }
  /// The same for a step whose values the device sent: its time is the interval between the values of two steps, since
  /// the time to queue a step does not measure it. All of it that the host did not spend otherwise counts for passes.
  void finish_on_device(StepRecord& record, double begin) {
    finish(record, std::max(begin, finished_at_));
    StepRecord::Phases& p = record.phases;
    p.forward_backward = record.seconds - p.data - p.reduction - p.optimizer;
  }

 private:
  StepRecord::Phases phases_;  ///< since the last step that was finished
  double lap_ = 0;             ///< start of the current lap
  double finished_at_ = 0;     ///< time of the last step's values
};

}  // namespace llmtrain
