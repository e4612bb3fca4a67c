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
#include "train/batch_prefetcher.hpp"
#include "train/config/config.hpp"
#include "train/estimate.hpp"
#include "train/run/resume.hpp"
#include "train/run/stop_monitor.hpp"

namespace llmtrain {

/// The micro-batches of a step in `count` groups of consecutive ones, as equal as can be.
struct ReductionGroups {
  /// `count` 0: every micro-batch is a group.
  ReductionGroups(int64_t micro_batches, int64_t count);
  int64_t begin(int64_t group) const { return group * micro_batches / count; }
  int64_t largest() const { return (micro_batches + count - 1) / count; }
  /// Groups of a step that has only the first `present` micro-batches, as the last of an epoch.
  int64_t used(int64_t present) const;

  int64_t micro_batches;
  int64_t count;
};

/// What of the deck decides where the state lies.
ParamStoreOptions offload_options(const Config& config);

/// Everything a run computes with: built from the resolved deck and the data, planned in an arena, then trained. A plan
/// for other rank counts is made the same way and never committed.
class Trainer {
 public:
  /// The deck must be resolved: vocab_size and precision known.
  /// node_size: ranks of a node that share memory, see ParamStoreOptions.
  Trainer(const Config& config, const Dataset& data, int rank, int size, int node_size);

  /// All memory by category; nothing is allocated.
  const Arena& plan() const { return arena_; }
  int64_t parameter_count() const { return params_.parameter_count(); }
  int64_t total_steps() const { return total_steps_; }
  double flops_per_token() const { return model_->flops_per_token(config_.batch.sequence_length); }
  const DataStream& training_data() const { return train_; }
  /// Null: there is nothing to evaluate on.
  const DataStream* validation_data() const { return validation_ ? &*validation_ : nullptr; }
  int64_t groups() const { return groups_.count; }
  /// On a disk, of this rank. Space for it is taken by reserve_disk(), which is collective, or else when training
  /// begins.
  int64_t offloaded_bytes() const { return params_.offloaded_bytes(); }
  void reserve_disk(Communicator& communicator);
  /// In memory of the host beside a GPU's, of this rank.
  int64_t pinned_bytes() const { return params_.pinned_bytes(); }

  /// How training ended: at its end, or before it on request, with a checkpoint to go on from.
  enum class Ended : uint8_t { finished, stopped };
  /// Allocates, takes the state of `from` or initialises, and trains. Collective.
  Ended train(Runtime& runtime, RunLog& log, StopMonitor& stop_monitor, const ResumePoint* from);
  int64_t steps_done() const { return steps_done_; }
  /// The files that the deck names, by content, for checkpoints; on rank 0.
  void set_contents(std::vector<NamedContent> contents) { contents_ = std::move(contents); }
  /// Allocates, and predicts the time of train() from a few steps and batches with random weights. Writes nothing.
  /// Collective; instead of train().
  Prediction measure(Runtime& runtime);

 private:
  struct Run;  // what exists only while training

  /// Memory, communication and the saver.
  void start(Run& run, const ResumePoint* from);
  /// Queues step n, all of it where the device decides about its update; the host has its values then after the next
  /// one's passes are queued, or when it calls learn(). False: what it learnt of the step before lets the run go back,
  /// and step n is given up.
  bool step(Run& run, int64_t n);
  void prepare(Run& run, int64_t n);
  void run_rounds(Run& run);
  void micro_batch(Run& run);
  /// Whether the step's gradients may change anything.
  bool check_step(Run& run, StepRecord& record, int64_t n);
  /// Whether the device decides by itself; the same on all ranks.
  bool device_decides(const Run& run) const;
  void decide_on_device(Run& run, double divisor);
  /// Values of a step from the integers in run.sums, which are those of all ranks.
  static void read_values(const Run& run, StepRecord& record, double divisor);
  void sum_on_host(Run& run);
  /// Waits for the values of a step that the host does not know yet, and judges and logs it.
  void finish_pending_step(Run& run);
  /// scale: of the sums of gradients, unless the device decides about it.
  void update(Run& run, const StepRecord& record, double scale);
  Ended finish(Run& run, int64_t completed, int64_t stop);
  /// What is owed after `completed` steps, and what there is to do between two steps. Gives the reason to stop, or 0.
  int64_t run_due_actions(Run& run, int64_t& completed);

  // trainer_evaluation.cpp: what is owed, until a reason to stop comes, which is given (else 0): then it stays owed.
  int64_t evaluate(Run& run, int64_t completed);
  int64_t write_samples(Run& run, int64_t completed);
  /// Whether it is the best so far.
  bool update_best(Run& run, const EvaluationRecord& record);

  // trainer_checkpoint.cpp
  void start_run(Run& run, const ResumePoint* from);
  uint64_t parameter_hash(Run& run);
  uint64_t hash_after(Run& run, int64_t completed);
  /// Gives the steps completed.
  int64_t restore(Run& run, const ResumePoint& from);
  /// `since`: when training began to wait for it.
  void save(Run& run, int64_t completed, double since);
  bool is_scheduled(const Run& run, int64_t completed) const;
  /// Publishes what was written, and agrees on what is asked for: reason to stop, save.
  struct Requests {
    int64_t stop, save;
  };
  Requests agree_on_requests(Run& run);
  /// Inside of what is owed: saves when asked to. Gives the reason to stop, or 0.
  int64_t stop_requested(Run& run, int64_t completed);
  /// Between two steps: saves what is due. Gives the reason to stop (`stop`, if one is known), or 0. A state that is
  /// not fit to be saved is given up for that of an earlier step.
  int64_t save_if_due(Run& run, int64_t& completed, int64_t stop);

  // trainer_divergence.cpp
  bool state_is_finite(Run& run);
  /// To the checkpoint that the guard chooses. Gives the steps completed there.
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
  std::vector<std::vector<int32_t>> prompts_;  ///< of samples
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
  Tensor decision_;                     ///< fp64 [2], a StepDecision; empty where the host decides
  Tensor sums_;                         ///< of a step, in the order of StepSum: int64 [2, ExactSum::integer_count]
  std::optional<Generator> generator_;  ///< where samples are written
  int64_t copied_elements_;             ///< of this rank's state, in the copy that a save makes
  Tensor state_copy_;                   ///< fp32 [copied_elements_], where device memory is the host's
};

}  // namespace llmtrain
