#pragma once
// The only code that prints, and the files of a run: log.txt, ledger.jsonl, metrics.jsonl, metrics.h5. Rank 0 owns one
// that writes; the other ranks' is silent.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace llmtrain {

/// One optimizer step. The exact values are the ledger; times are for people.
struct StepRecord {
  int64_t step = 0;  ///< completed, from 1
  double learning_rate = 0;
  double loss = 0;                     ///< mean over the trained tokens of the step; means nothing without one
  double grad_norm = 0;                ///< before clipping
  int64_t tokens = 0;                  ///< trained; 0: no sample of the step has a target, so it has no loss
  uint64_t samples = 0;                ///< hash of the sample numbers
  std::optional<uint64_t> parameters;  ///< hash, at hashed steps
  int64_t bad_steps = 0;               ///< in a row up to this one, whose update was left out; 0: a good step
  std::string problem;                 ///< of a bad step: what is wrong
  std::vector<int64_t> sample_ids;     ///< of a bad step
  struct Scaling {
    double loss_scale = 1;
    int64_t skipped_steps = 0;  ///< of the run, up to this one
    bool skipped = false;       ///< this one: its gradients overflowed
  };
  std::optional<Scaling> scaling;  ///< with fp16
  double seconds = 0;              ///< wall time of the step
  struct Phases {
    double data = 0, forward_backward = 0, reduction = 0, optimizer = 0;
  } phases;  ///< seconds
};

struct EvaluationRecord {
  int64_t step = 0;
  double loss = 0;
  int64_t tokens = 0;
  double seconds = 0;
  bool best = false;
  std::optional<double> token_accuracy = {};  ///< where it is wanted
};

/// The run goes back to a checkpoint and leaves data out.
struct RollbackRecord {
  int64_t step = 0;                             ///< of the checkpoint
  int64_t from = 0;                             ///< steps completed until then
  int64_t first_skipped = 0, last_skipped = 0;  ///< steps of the data [first, last)
  std::string reason;
};

/// What the log of a resumed run goes on from; kept in checkpoints.
struct LogState {
  std::map<std::string, int64_t> counters;
  std::map<std::string, double> values;
  bool evaluation_pending = false;  ///< of the checkpoint's step: it will be done, whether or not it has been
};

struct RunLogOptions {
  std::string directory;  ///< of the run; empty: console only
  bool active = true;     ///< false on ranks other than 0
  int64_t total_steps = 0;
  int64_t every_steps = 10;  ///< console and metrics.jsonl interval
  /// Evaluations that are to come when the step has been logged, its own included; null: none.
  std::function<int64_t(int64_t step)> evaluations_left;
  double evaluation_steps = 0;  ///< how many steps take as long as an evaluation, until one was timed
  bool jsonl = true;
  bool hdf5 = true;
  bool scales_loss = false;
  int ranks = 1;
  double flops_per_token = 0;
  double optimum = 0;                   ///< loss of a perfect model where it is known, else 0
  int64_t memory_bytes = 0;             ///< planned per rank
  std::function<int64_t()> memory_now;  ///< bytes that this rank has where the plan lies; null: not known, 0
  std::vector<std::string> earlier;     ///< lines that the console has shown already, for log.txt
  std::optional<LogState> resumed;      ///< of the checkpoint that the run goes on from
  int64_t resumed_step = 0;
};

class RunLog {
 public:
  explicit RunLog(const RunLogOptions& options);
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  /// Lines to the console and log.txt.
  void print(const std::string& text);
  void warn(const std::string& text);

  /// Ledger line at once (flushed); console line and metrics.jsonl line at the interval and the last step: the step's
  /// values and the interval's mean loss, tokens/s, FLOP/s, time left.
  void step(const StepRecord& record);
  void evaluation(const EvaluationRecord& record);
  /// What is for people is cut back to the checkpoint, whose state is `state`; the ledger keeps what happened.
  void roll_back(const RollbackRecord& record, const LogState& state);
  /// Seconds of training in this job and those before it.
  double wall_time() const;
  /// As of now; everything so far is on the disk, metrics.h5 included, when it returns.
  LogState save();
  void sample(int64_t step, const std::string& prompt, const std::string& continuation, double seconds);
  /// Best and last losses (beside the optimum), tokens/s, times by phase, files written.
  void finish(const std::string& reason);
  /// The end of a job whose run goes on: nothing but the reason and where the results are.
  void stop(const std::string& reason);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace llmtrain
