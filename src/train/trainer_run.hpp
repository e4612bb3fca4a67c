#pragma once
// What a trainer has only while it trains. Private to trainer*.cpp.

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

/// What is summed on the device in a step, each an ExactSum's integers.
enum StepSum : uint8_t { loss_sum, gradient_square_sum, step_sums };

struct Trainer::Run {
  Run(Trainer& trainer, Runtime& runtime_in, RunLog& log_in, StopMonitor& stop_monitor_in);

  Runtime& runtime;
  RunLog& log;
  std::optional<PlannedMemory> memory;
  Context ctx;
  BatchPrefetcher prefetcher;
  std::string no_graphs;  ///< why passes are not graphs; empty where they are
  PassGraphs graphs;
  StepPlan plan;                             ///< of the current step
  std::vector<int64_t> local_micro_batches;  ///< its micro-batches of this rank, in the order of the rounds
  size_t next_local = 0;
  ExactSum loss;  ///< of the step, of this rank's micro-batches
  PinnedBuffer sums{step_sums * ExactSum::integer_count * static_cast<int64_t>(sizeof(int64_t))};
  /// A step whose update the device decided about, which the host does not know yet: its sums and the decision are on
  /// their way to `sums` and `decision`. At most the last one, and none between what is owed or saved.
  struct PendingStep {
    StepRecord record;
    double divisor, begin;
  };
  std::optional<PendingStep> pending_step;
  PinnedBuffer decision{sizeof(StepDecision)};
  Event decided;                                               ///< they have arrived
  double known_at = 0;                                         ///< when the last step's values were, seconds
  StepRecord::Phases phases;                                   ///< of the host, since then or since the step began
  double best = std::numeric_limits<double>::infinity();       ///< evaluation by best_metric: lower is better
  double reference = std::numeric_limits<double>::infinity();  ///< the value early stopping compares with
  int64_t best_step = -1;
  int64_t without_improvement = 0;
  bool stop = false;
  /// Of the current step, not done yet. Kept in checkpoints: a job may be asked to stop inside.
  struct Pending {
    bool evaluation = false, samples = false;
  } pending;

  DivergenceGuard guard;
  LossScaler scaler;
  std::string start_path;  ///< of the checkpoint of another run that this one began with

  StopMonitor& stop_monitor;
  PinnedBuffer host_copy;  ///< Trainer::state_copy_ where device memory is not the host's
  std::optional<Saver> saver;
  std::vector<uint64_t> unit_hashes;           ///< what the parameters' hash is made of
  std::pair<int64_t, uint64_t> hashed{-1, 0};  ///< step, and the parameters' hash after it
  int64_t saved_step = -1;                     ///< the newest save was begun after it, or the run resumed from it
  bool saved_pending_evaluation = false;       ///< it owes an evaluation
  int64_t best_saved = -1;                     ///< the newest save after which no evaluation was better
  uint64_t data = 0;                           ///< fingerprint, on rank 0
  double step_seconds = 0;                     ///< of the longest step

  /// Of the folder that the weights come from, by file, on rank 0: read at the start, since it may be gone at the end.
  std::map<std::string, std::string> texts;
  std::map<std::string, std::string> kept_texts;  ///< of them, what every checkpoint holds
};

/// Token ids of log.sample_prompts; an empty one begins as some document of the data begins.
std::vector<std::vector<int32_t>> encode_prompts(const Config& config, const Tokenizer* tokenizer);

}  // namespace llmtrain
