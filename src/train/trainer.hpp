#pragma once
#include <memory>
#include <optional>
#include <string>

#include "core/arena.hpp"
#include "data/dataset.hpp"
#include "generate/generator.hpp"
#include "metrics/run_log.hpp"
#include "models/decoder.hpp"
#include "objectives/objective.hpp"
#include "optim/optimizer.hpp"
#include "parallel/job/runtime.hpp"
#include "params/reduction_groups.hpp"
#include "train/batch_prefetcher.hpp"
#include "train/config/config.hpp"
#include "train/run/estimate.hpp"
#include "train/run/resume.hpp"
#include "train/run/stop_monitor.hpp"

namespace llmtrain {

/// Options of the deck that decide where the state lies.
ParamStoreOptions offload_options(const Config& config);

/// A training run: built from the resolved deck and the data, planned in an arena, then trained. A plan for other rank
/// counts is made the same way and never committed.
class Trainer {
 public:
  /// The deck must be resolved: vocab_size and precision known.
  /// node_size: ranks of a node that share memory, see ParamStoreOptions.
  Trainer(const Config& config, const Dataset& data, int rank, int size, int node_size);

  /// Plan of all memory by category; nothing is allocated.
  const Arena& plan() const { return arena_; }
  int64_t parameter_count() const { return params_.parameter_count(); }
  int64_t total_steps() const { return total_steps_; }
  double flops_per_token() const { return model_->flops_per_token(config_.batch.sequence_length); }
  const DataStream& training_data() const { return train_; }
  /// Null if there is no validation data.
  const DataStream* validation_data() const { return validation_ ? &*validation_ : nullptr; }
  int64_t groups() const { return groups_.count; }
  /// Bytes of this rank on a disk. reserve_disk(), which is collective, creates the file; without it the start of
  /// training does.
  int64_t offloaded_bytes() const { return params_.offloaded_bytes(); }
  void reserve_disk(Communicator& communicator);
  /// Bytes of this rank in pinned host memory beside a GPU.
  int64_t pinned_bytes() const { return params_.pinned_bytes(); }

  /// Reason for the return: the end of training, or a request to stop, after a checkpoint to resume from.
  enum class Ended : uint8_t { finished, stopped };
  /// Allocates, restores the state of `from` or initialises, and trains. Collective.
  Ended train(Runtime& runtime, RunLog& log, StopMonitor& stop_monitor, const ResumePoint* from);
  int64_t steps_done() const { return steps_done_; }
  /// Sets the content identities of the deck's files, for checkpoints; on rank 0.
  void set_contents(std::vector<NamedContent> contents) { contents_ = std::move(contents); }
  /// Allocates, and predicts the time of train() from a few steps and batches with random weights. Writes nothing.
  /// Collective; instead of train().
  Prediction measure(Runtime& runtime);

 private:
  struct Run;  // state that exists only during training

  /// Allocates memory and starts communication and the saver.
  void start(Run& run, const ResumePoint* from);
  /// Queues step n, completely if the device decides about its update; the host then learns its values after it has
  /// queued the next step's passes, or in finish_pending_step(). Returns false if the values of the step before cause a
  /// rollback; step n is then discarded.
  bool step(Run& run, int64_t n);
  void prepare(Run& run, int64_t n);
  void run_rounds(Run& run);
  void micro_batch(Run& run);
  /// Returns true if the step's gradients may be applied.
  bool check_step(Run& run, StepRecord& record, int64_t n);
  /// True if the device decides about updates; the same on all ranks.
  bool device_decides(const Run& run) const;
  void decide_on_device(Run& run, double divisor);
  /// Computes the values of a step from the integers in run.sums, which are those of all ranks.
  static void read_values(const Run& run, StepRecord& record, double divisor);
  void sum_on_host(Run& run);
  /// Waits for the values of the pending step, checks and logs it.
  void finish_pending_step(Run& run);
  /// scale: factor on gradient sums, unless the device decides about it.
  void update(Run& run, const StepRecord& record, double scale);
  Ended finish(Run& run, int64_t completed, int64_t stop);
  /// Runs the evaluations, samples and saves that are due after `completed` steps. Returns the reason to stop, or 0.
  int64_t run_due_actions(Run& run, int64_t& completed);

  // trainer_evaluation.cpp. Work that is interrupted by a request to stop stays pending; the functions return the
  // reason to stop, else 0.
  int64_t evaluate(Run& run, int64_t completed);
  int64_t write_samples(Run& run, int64_t completed);
  /// Returns true if the record is the best so far.
  bool update_best(Run& run, const EvaluationRecord& record);

  // trainer_checkpoint.cpp
  void start_run(Run& run, const ResumePoint* from);
  uint64_t parameter_hash(Run& run);
  uint64_t hash_after(Run& run, int64_t completed);
  /// Returns the number of completed steps.
  int64_t restore(Run& run, const ResumePoint& from);
  /// `since`: the time from which training waited for the save.
  void save(Run& run, int64_t completed, double since);
  bool is_scheduled(const Run& run, int64_t completed) const;
  /// Advances a save in progress, and agrees on requests to stop and to save.
  struct Requests {
    int64_t stop, save;
  };
  Requests agree_on_requests(Run& run);
  /// Saves on request during an evaluation or samples. Returns the reason to stop, or 0.
  int64_t stop_requested(Run& run, int64_t completed);
  /// Saves between two steps if a save is due. Returns the reason to stop (`stop`, if one is known), or 0. If the state
  /// is not finite, the run rolls back to an earlier step.
  int64_t save_if_due(Run& run, int64_t& completed, int64_t stop);

  // trainer_divergence.cpp
  bool state_is_finite(Run& run);
  /// Rolls back to the checkpoint that the guard chooses. Returns the number of steps completed there.
  int64_t roll_back(Run& run, int64_t completed);
  ResumePoint rollback_point(Run& run, int64_t completed);

  // trainer_weights.cpp
  void set_weights(Run& run);
  void read_texts(Run& run);
  void export_weights(Run& run);
  void load_best(Run& run, int64_t completed);
  bool due(int64_t every, int64_t completed) const { return every > 0 && completed % every == 0; }

  Config config_;
  std::vector<NamedContent> contents_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<std::vector<int32_t>> prompts_;  ///< prompts of samples
  std::shared_ptr<const TokenFile> train_source_;
  DataStream train_;
  std::optional<DataStream> validation_;
  ReductionGroups groups_;
  int64_t total_steps_;
  int64_t steps_done_ = 0;
  DecoderShape shape_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Objective> objective_;
  std::unique_ptr<Optimizer> optimizer_;
  ParamStore params_;
  Arena arena_;
  BatchBuffers batch_;
  TokenStatistics statistics_;          ///< fp32 [N]
  TokenCotangents cotangents_;          ///< fp32 [N]
  Tensor cotangent_scale_;              ///< fp32 [1] of the step, with fp16
  Tensor decision_;                     ///< fp64 [2], a StepDecision; empty if the host decides
  Tensor sums_;                         ///< sums of a step, in the order of StepSum: int64 [2, ExactSum::integer_count]
  std::optional<Generator> generator_;  ///< set if samples are written
  int64_t copied_elements_;             ///< number of this rank's state elements in the copy for a save
  Tensor state_copy_;                   ///< fp32 [copied_elements_], if device memory is the host's
};

}  // namespace llmtrain
