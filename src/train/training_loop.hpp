#pragma once
// The loop over the steps of a run: a step; evaluations and samples that are due; a save if it is due; the end if it is
// asked for.

#include <optional>
#include <string>
#include <vector>

#include "hf/export.hpp"
#include "params/planned_memory.hpp"
#include "train/run_checkpoints.hpp"
#include "train/run_evaluation.hpp"
#include "train/training_step.hpp"

namespace llmtrain {

/// True if the parameters' hash is logged after this many steps.
bool is_hashed(const Config& config, int64_t completed);
/// Options of a step, from the deck.
StepOptions step_options(const Config& config, const TrainingPlan& plan);

class TrainingLoop {
 public:
  /// Allocates the plan's memory and starts communication. Collective.
  TrainingLoop(const Config& config, TrainingPlan& plan, Runtime& runtime, RunLog& log, StopMonitor& stop_monitor,
               const ResumePoint* from, std::vector<NamedContent> contents);

  /// Trains to the end, or to a request to stop. Returns the reason to stop, or 0.
  int64_t run();
  int64_t completed() const { return completed_; }

 private:
  /// Sets the parameters: those of the checkpoint, or initial ones.
  void start(const ResumePoint* from);
  /// Runs the evaluations, samples and saves that are due. Returns the reason to stop, or 0.
  int64_t run_due_actions();
  int64_t save_if_due(int64_t stop);
  /// Rolls back after divergence.
  void roll_back_and_prepare();
  int64_t finish(int64_t stop);
  bool due(int64_t every) const { return every > 0 && completed_ % every == 0; }

  const Config& config_;
  TrainingPlan& plan_;
  Runtime& runtime_;
  RunLog& log_;
  PlannedMemory memory_;
  RunProgress progress_;
  ParameterHash hash_;
  /// Texts in the folder of the initial weights, by file name, on rank 0: read at the start, since the folder may be
  /// gone at the end.
  ExportOptions export_;  ///< files and chat of the exported model; on rank 0, where the deck wants one
  TrainingStep step_;
  std::optional<RunCheckpoints> checkpoints_;
  RunEvaluation evaluation_;
  RunSamples samples_;
  int64_t completed_ = 0;
};

}  // namespace llmtrain
