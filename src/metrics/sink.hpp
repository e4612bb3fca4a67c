#pragma once
// Sinks: files that a run's metrics go to, besides the console and the ledger. To add one, add a name to
// LogConfig::Sink, a file with a class, and a line in sinks.cpp.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "metrics/log_config.hpp"
#include "metrics/records.hpp"
#include "metrics/wandb_config.hpp"

namespace llmtrain {

/// Facts of a run that sinks need.
struct SinkOptions {
  std::string directory;  ///< the run's
  bool scales_loss = false;
  std::vector<std::string> metrics = {};  ///< names of an objective's values besides the loss
  std::vector<std::string> scores = {};   ///< names of the scores of evaluations
  int ranks = 1;
  std::string restart = {};                              ///< reason for which a job script started the run again
  std::string name = {};                                 ///< run.name
  std::vector<DeckSetting> settings = {};                ///< the resolved deck
  WandbConfig wandb = {};                                ///< [wandb]
  int64_t event_file_bytes = int64_t{64} * 1024 * 1024;  ///< size at which the next event file begins
};

inline constexpr size_t max_grad_norms = 4096;

/// A log interval: its last step, and means over its steps.
struct IntervalRecord {
  StepRecord last;
  double wall_time = 0;  ///< seconds of training since the run began
  double loss_mean = 0;  ///< NaN if no token counts
  double tokens_per_second = 0;
  double flops_per_second = 0;
  int64_t memory = 0;            ///< bytes in use on the planned device; 0: unknown
  int64_t memory_libraries = 0;  ///< bytes in use before the planned allocation was touched
  int64_t memory_planned = 0;
  double seconds = 0;              ///< of a step
  std::vector<double> grad_norms;  ///< of the interval's steps, at most max_grad_norms of them
  StepRecord::Phases phases;       ///< of a step
  std::vector<NamedValue> system;  ///< "samples_per_second", "mfu", and values of the nodes and ranks
};

/// A constructor or a member that throws ends the sink, not the run.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void interval(const IntervalRecord& record) = 0;
  virtual void evaluation(const EvaluationRecord& record, double wall_time) = 0;
  virtual void notice(const NodeNotice& /*notice*/, double /*wall_time*/) {}
  virtual void samples(const SampleRecord& /*record*/, double /*wall_time*/) {}
  /// The run resumes after `step`; the sink removes what is later, and what is pending. Returns a warning, or "".
  virtual std::string resume(int64_t step, PendingWork pending, double wall_time) = 0;
  virtual void roll_back(const RollbackRecord& record, PendingWork pending, double wall_time) = 0;
  /// The job ends; `finished`: the run does, too.
  virtual void end(bool /*finished*/) {}
  /// When it returns, everything so far is on the disk.
  virtual void sync() = 0;
};

std::unique_ptr<Sink> make_sink(LogConfig::Sink name, const SinkOptions& options);

std::unique_ptr<Sink> make_hdf5_sink(const SinkOptions& options);
std::unique_ptr<Sink> make_jsonl_sink(const SinkOptions& options);
std::unique_ptr<Sink> make_tensorboard_sink(const SinkOptions& options);
std::unique_ptr<Sink> make_wandb_sink(const SinkOptions& options);
std::unique_ptr<Sink> make_html_sink(const SinkOptions& options);

}  // namespace llmtrain
