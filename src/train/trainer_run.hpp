#pragma once
// State that a trainer has only during training. Private to trainer*.cpp.

#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/step_decision.hpp"
#include "optim/loss_scale.hpp"
#include "params/planned_memory.hpp"
#include "train/divergence.hpp"
#include "train/pass_graphs.hpp"
#include "train/run/stop_monitor.hpp"
#include "train/saver.hpp"
#include "train/trainer.hpp"

namespace llmtrain {

/// Sums over a step on the device, each as the integers of an ExactSum.
enum StepSum : uint8_t { loss_sum, gradient_square_sum, step_sums };

struct Trainer::Run {
  Run(Trainer& trainer, Runtime& runtime_in, RunLog& log_in, StopMonitor& stop_monitor_in);

  Runtime& runtime;
  RunLog& log;
  std::optional<PlannedMemory> memory;
  Context ctx;
  BatchPrefetcher prefetcher;
  std::string no_graphs;  ///< why passes do not use graphs; empty if they do
  PassGraphs graphs;
  StepPlan plan;  ///< plan of the current step
  /// micro-batches of this rank in the current step, in the order of the rounds
  std::vector<int64_t> local_micro_batches;
  size_t next_local = 0;
  ExactSum loss;  ///< loss of this rank's micro-batches in the current step
  PinnedBuffer sums{step_sums * ExactSum::integer_count * static_cast<int64_t>(sizeof(int64_t))};
  /// A step whose update the device decided, and whose values the host has not read: its sums and the decision are in
  /// transfer to `sums` and `decision`. There is at most one, and none during an evaluation, samples or a save.
  struct PendingStep {
    StepRecord record;
    double divisor, begin;
  };
  std::optional<PendingStep> pending_step;
  PinnedBuffer decision{sizeof(StepDecision)};
  Event decided;        ///< completion of the transfers
  double known_at = 0;  ///< time of the last step's values, seconds
  /// times of the host, since then or since the start of the step
  StepRecord::Phases phases;
  double best = std::numeric_limits<double>::infinity();       ///< evaluation by best_metric: lower is better
  double reference = std::numeric_limits<double>::infinity();  ///< the value early stopping compares with
  int64_t best_step = -1;
  int64_t without_improvement = 0;
  bool stop = false;
  /// Work of the current step that is pending. Checkpoints store it, since a job may be stopped before its end.
  struct Pending {
    bool evaluation = false, samples = false;
  } pending;

  DivergenceGuard guard;
  LossScaler scaler;
  std::string start_path;  ///< checkpoint of another run from which this run started

  StopMonitor& stop_monitor;
  PinnedBuffer host_copy;  ///< replaces Trainer::state_copy_ if device memory is not the host's
  std::optional<Saver> saver;
  std::vector<uint64_t> unit_hashes;           ///< inputs of the parameters' hash
  std::pair<int64_t, uint64_t> hashed{-1, 0};  ///< step, and the parameters' hash after it
  /// step of the newest save, or of the checkpoint that the run resumed from
  int64_t saved_step = -1;
  bool saved_pending_evaluation = false;  ///< its evaluation was pending
  int64_t best_saved = -1;                ///< newest save after which no evaluation was better
  uint64_t data = 0;                      ///< fingerprint of the data, on rank 0
  double step_seconds = 0;                ///< duration of the longest step

  /// Texts in the folder of the initial weights, by file name, on rank 0: read at the start, since the folder may be
  /// gone at the end.
  std::map<std::string, std::string> texts;
  std::map<std::string, std::string> kept_texts;  ///< those that every checkpoint stores
};

/// Token ids of log.sample_prompts; an empty prompt starts like a document of the data.
std::vector<std::vector<int32_t>> encode_prompts(const Config& config, const Tokenizer* tokenizer);

}  // namespace llmtrain
