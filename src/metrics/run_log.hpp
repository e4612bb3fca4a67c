#pragma once
// All output of a run: the console, log.txt, ledger.jsonl, and the sinks of log.sinks. Rank 0 owns a log that writes;
// the logs of other ranks are silent.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "metrics/log_config.hpp"
#include "metrics/records.hpp"
#include "metrics/sink.hpp"

namespace llmtrain {

struct RunLogOptions {
  SinkOptions run = {};  ///< facts of the run; without a directory there is the console only
  bool active = true;    ///< false on ranks other than 0
  int64_t total_steps = 0;
  int64_t every_steps = 10;  ///< console and metrics.jsonl interval
  bool every_first = false;  ///< True if step 1 is an interval of its own
  /// Returns the number of future evaluations after a logged step, its own included; null: none.
  std::function<int64_t(int64_t step)> evaluations_left;
  double evaluation_steps = 0;  ///< duration of an evaluation in steps, until one was timed
  std::vector<LogConfig::Sink> sinks = {LogConfig::Sink::hdf5, LogConfig::Sink::jsonl};
  double flops_per_token = 0;
  double peak_flops = 0;     ///< FLOP/s of all devices together at best; 0: unknown
  double optimum = 0;        ///< loss of a perfect model if known, otherwise 0
  int64_t memory_bytes = 0;  ///< planned bytes per rank
  std::function<int64_t()>
      memory_now;                    ///< returns the bytes that this rank uses on the planned device; null: unknown, 0
  std::vector<std::string> earlier;  ///< lines that the console has shown already, for log.txt
  std::optional<LogState> resumed;   ///< state in the checkpoint from which the run resumes
  int64_t resumed_step = 0;
};

class RunLog {
 public:
  explicit RunLog(const RunLogOptions& options);
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  /// Prints lines to the console and log.txt.
  void print(const std::string& text);
  void warn(const std::string& text);

  /// Appends the ledger line at once (flushed); the console line and the line of metrics.jsonl at the interval and the
  /// last step: the step's values and the interval's mean loss, tokens/s, FLOP/s, time left.
  /// `system`: values of the nodes and ranks, where the step ends an interval.
  void step(const StepRecord& record, const SystemRecord& system = {});
  /// True if a log interval ends with this step; the same on every rank.
  bool ends_interval(int64_t step) const;
  /// Tells the console, log.txt and the sinks of a node, outside a log interval.
  void notice(const NodeNotice& notice);
  void evaluation(const EvaluationRecord& record);
  /// Truncates the user's files to the checkpoint, whose state is `state`; the ledger keeps the history.
  void roll_back(const RollbackRecord& record, const LogState& state);
  /// Returns the current state; when it returns, everything so far is on the disk, metrics.h5 included.
  LogState save();
  void samples(const SampleRecord& record);
  /// Prints best and last losses (and the optimum), tokens/s, times by phase, files written.
  void finish(const std::string& reason);
  /// Ends a job whose run continues later: prints only the reason and the location of the results.
  void stop(const std::string& reason);
  /// Ends a job that an error ends, of which the caller tells the console: log.txt and the other files get the rest.
  void fail(const std::string& error);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace llmtrain
