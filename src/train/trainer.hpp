#pragma once
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.hpp"
#include "metrics/run_log.hpp"
#include "parallel/job/runtime.hpp"
#include "train/config/config.hpp"
#include "train/run/estimate.hpp"
#include "train/run/resume.hpp"
#include "train/run/stop_monitor.hpp"
#include "train/training_plan.hpp"

namespace llmtrain {

/// A training run: built from the resolved deck and the data, planned in an arena, then trained. A plan for other rank
/// counts is made the same way and never committed.
class Trainer {
 public:
  Trainer(const Config& config, const Dataset& data, const RankPosition& position)
      : config_(config), plan_(config, data, position) {
    config_.set_epoch_intervals(plan_.train.steps_per_epoch());
  }

  /// The deck, with the intervals that follow from the data.
  const Config& config() const { return config_; }

  /// Returns the plan; nothing is allocated.
  const TrainingPlan& plan() const { return plan_; }
  double flops_per_token() const { return plan_.model().flops_per_token(config_.batch.sequence_length); }
  /// Creates this rank's file in parallel.offload_path, if any; without it the start of training does. Collective.
  void reserve_disk(Communicator& communicator);

  /// Reason for the return: the end of training, or a request to stop, after a checkpoint to resume from.
  enum class Ended : uint8_t { finished, stopped };
  /// Allocates, restores the state of `from` or initialises, and trains. `contents`: content identities of the deck's
  /// files, for checkpoints; on rank 0. Collective.
  Ended train(Runtime& runtime, RunLog& log, StopMonitor& stop_monitor, const ResumePoint* from,
              std::vector<NamedContent> contents);
  int64_t steps_done() const { return steps_done_; }
  /// Allocates, and predicts the time of train() from a few steps and batches with random weights. Writes nothing.
  /// Collective; instead of train().
  Prediction measure(Runtime& runtime);

 private:
  Config config_;
  TrainingPlan plan_;
  int64_t steps_done_ = 0;
};

}  // namespace llmtrain
