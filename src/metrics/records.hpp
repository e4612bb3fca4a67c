#pragma once
// Records of a run: its steps, evaluations and rollbacks, as the log takes them.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace llmtrain {

/// A value besides the loss, as the objective names it.
struct NamedValue {
  std::string name;   ///< as in the ledger
  std::string label;  ///< on the console; empty: it is not shown
  double value = 0;
};

/// One optimizer step. The exact values go to the ledger; times are informative.
struct StepRecord {
  int64_t step = 0;  ///< completed steps, from 1
  double learning_rate = 0;
  double loss = 0;        ///< mean over the trained tokens of the step; undefined without any
  double grad_norm = 0;   ///< norm before clipping
  int64_t tokens = 0;     ///< trained tokens, or what the objective counts; 0: no sample has a target, so no loss
  int64_t processed = 0;  ///< tokens of the passes, for rates; 0: as many as `tokens`
  std::optional<double> curriculum = {};  ///< value of the curriculum, which joins the metrics, if there is one
  std::vector<NamedValue> metrics;        ///< of the objective, besides the loss
  std::vector<NamedValue> details = {};   ///< further values of log intervals, beside the ledger
  std::vector<double> rollout;            ///< metrics of the rollout that the step learns from, which join the others
  uint64_t samples = 0;                   ///< hash of the sample numbers, or of a rollout's tokens
  std::optional<uint64_t> parameters;     ///< hash, at hashed steps
  int64_t bad_steps = 0;  ///< consecutive bad steps up to this one, whose updates were omitted; 0: a good step
  std::string problem;    ///< problem of a bad step
  std::vector<int64_t> sample_ids;  ///< samples of a bad step; of a rollout the prompts' samples
  std::vector<std::string> places;  ///< of these prompts, "file:line", some of them; otherwise empty
  struct Scaling {
    double loss_scale = 1;
    int64_t skipped_steps = 0;  ///< skipped steps of the run up to this one
    bool skipped = false;       ///< True if the gradients of this step overflowed
  };
  std::optional<Scaling> scaling;  ///< with fp16
  double seconds = 0;              ///< wall time of the step
  int64_t sequences = 0;           ///< samples of the step
  struct Phases {
    double data = 0, forward_backward = 0, reduction = 0, optimizer = 0;
  } phases;  ///< in seconds
  /// This rank's reading and passes, without waiting for other ranks.
  struct RankWork {
    double seconds = 0;
    int64_t tokens = 0;
  } own;
};

/// A node that has become slow, or has recovered; or one that a replay names (train/run/replay.hpp).
struct NodeNotice {
  int64_t step = 0;
  std::string host;
  bool slow = false;
  std::vector<int> ranks;  ///< that are slow, or that a replay names
  double ratio = 0;        ///< own work of its slowest rank, relative to the median of all ranks
  /// wrong: its ranks computed wrong gradients; doubtful: its ranks or those of another node did.
  enum class Replay : uint8_t { none, wrong, doubtful } replay = Replay::none;
  bool operator==(const NodeNotice&) const = default;
};

/// Values of the nodes and ranks in a log interval.
struct SystemRecord {
  std::vector<NamedValue> values;  ///< "system/HOST/cpu_percent", "ranks/step_seconds/max", ...
  std::vector<NodeNotice> notices;
  std::optional<double> joules = {};  ///< energy of all nodes since the job began; empty: not every node counts it
};

struct EvaluationRecord {
  int64_t step = 0;
  double loss = 0;     ///< undefined without tokens
  int64_t tokens = 0;  ///< 0: there are no validation data
  double seconds = 0;
  bool best = false;
  std::optional<double> token_accuracy = {};  ///< if requested
  std::vector<NamedValue> metrics = {};       ///< of the objective, besides the loss
  std::vector<NamedValue> scores = {};        ///< of evaluation.tasks, evaluation.metrics and labels
  std::vector<std::string> labels = {};       ///< of the confusion matrix; none: there is no matrix
  std::vector<int64_t> confusion = {};        ///< [K, K] numbers: a row for each true label, by predicted ones
};

/// Continuations of the prompts of log.sample_prompts, after a step.
struct SampleRecord {
  struct Sample {
    std::string prompt, text;
  };
  int64_t step = 0;
  std::vector<Sample> samples;
  double seconds = 0;
};

/// Work of the step to which a run returns that it will do again, whether or not it was done.
struct PendingWork {
  bool evaluation = false;
  bool samples = false;
};

/// State of the log in a checkpoint, from which a resumed run continues.
struct LogState {
  std::map<std::string, int64_t> counters;
  std::map<std::string, double> values;
  PendingWork pending = {};
};

/// A key of the deck and its value, for the hyperparameters that sinks show.
struct DeckSetting {
  std::string section, key;
  std::string value;        ///< as in the resolved deck
  bool is_changed = false;  ///< True if the value differs from the default, and results depend on it
};

/// Rollback of the run to a checkpoint, with data that is omitted.
struct RollbackRecord {
  int64_t step = 0;                             ///< step of the checkpoint
  int64_t from = 0;                             ///< completed steps before the rollback
  int64_t first_skipped = 0, last_skipped = 0;  ///< steps of the omitted data [first, last)
  std::string reason;
};

}  // namespace llmtrain
