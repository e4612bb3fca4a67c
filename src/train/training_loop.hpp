#pragma once
// The loop over the steps of a run: a step; evaluations and samples that are due; a save if it is due; the end if it is
// asked for.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hf/export.hpp"
#include "params/planned_memory.hpp"
#include "system/rank_monitor.hpp"
#include "train/run_checkpoints.hpp"
#include "train/run_evaluation.hpp"
#include "train/step_profile.hpp"
#include "train/training_step.hpp"

namespace llmtrain {

/// Choices of the deck for the loop, and facts about its start.
struct TrainingOptions {
  StepOptions step;
  RunProgress progress;  ///< of a new run
  EvaluationConfig evaluation = {};
  LogConfig log = {};
  CheckpointOptions checkpoints = {};
  DType compute = DType::f32;  ///< dtype of the products, for the profile
  bool overwrite = false;      ///< run.overwrite, without which the same command resumes
  /// Files and chat of the exported model, on rank 0 where the deck wants one: read at the start, since the folder of
  /// the initial weights may be gone at the end.
  ExportOptions exported = {};
  std::vector<int64_t> stop_ids = {};          ///< tokens that end a text
  std::string tokenizer = {};                  ///< data.tokenizer, if it names files
  std::vector<std::string> added_tokens = {};  ///< data.add_tokens
  std::function<void()> at_interval = {};      ///< called before an interval is logged, on every rank

  /// Returns the parameters' hash if it is logged after this many steps. Collective.
  std::optional<uint64_t> hash_if_due(int64_t completed, ParameterHash& hash) const;
};

class TrainingLoop : StepObserver {
 public:
  /// Allocates the plan's memory and starts communication. Collective.
  TrainingLoop(TrainingOptions options, TrainingPlan& plan, Runtime& runtime, const Mesh& mesh, RunLog& log,
               StopMonitor& stop_monitor);

  /// Trains to the end, or to a request to stop. Returns the reason to stop, or 0.
  int64_t run();
  int64_t completed() const { return completed_; }

 private:
  /// Sets the parameters: those of the checkpoint, or initial ones.
  void start();
  void take_adapter_start(const std::string& checkpoint);
  void load_weights(Role role, const std::string& label, bool adapters = true);
  void before_update() override { checkpoints_->wait_before_update(); }
  std::optional<uint64_t> hash_if_due(int64_t completed) override { return options_.hash_if_due(completed, hash_); }
  SystemRecord values_of_ranks(const StepRecord& record) override;
  void replayed(int64_t completed, const ReplayFindings& findings) override;
  /// Counts a completed step, moves the reference if that is due, and notes the evaluation and samples that are.
  void complete_step();
  /// Runs the reports, evaluations, samples and saves that are due. Returns the reason to stop, or 0.
  int64_t run_due_actions();
  void report_profile_if_due(bool the_end);
  int64_t save_if_due(int64_t stop);
  /// Makes the samples that the next step learns from, where it learns from one. Returns the reason to stop, or 0.
  int64_t prepare_step();
  int64_t prepare_batches();
  /// Rolls back after divergence.
  void roll_back_and_prepare();
  std::string adapter_folder() const;
  /// Writes adapter/ if the run trains adapters.
  void write_adapters();
  int64_t finish(int64_t stop);
  bool due(int64_t every) const { return every > 0 && completed_ % every == 0; }

  TrainingOptions options_;
  PlannedMemory memory_;
  RunProgress progress_;
  SharedRows rows_;
  RunContext run_;
  RankMonitor monitor_;
  ParameterHash hash_;
  TrainingStep step_;
  std::optional<StepProfile> profile_;
  bool graphs_are_limited_ = false;
  std::optional<RunCheckpoints> checkpoints_;
  RunEvaluation evaluation_;
  RunSamples samples_;
  int64_t completed_ = 0;
};

}  // namespace llmtrain
