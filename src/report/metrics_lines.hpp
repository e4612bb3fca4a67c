#pragma once
// Contents of metrics.jsonl and ledger.jsonl, line by line.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace llmtrain {

/// Values of a metric by step. Steps ascend; of a step that was done again after a resume or a rollback the last value
/// stands.
struct MetricSeries {
  std::vector<int64_t> steps;
  std::vector<double> values;  ///< NaN where metrics.jsonl has null
};

/// A node that became slow, or recovered.
struct NodeEvent {
  int64_t step = 0;
  std::string host;
  bool slow = false;
  double ratio = 0;         ///< own work of its slowest rank, relative to the median of all ranks
  std::string replay = {};  ///< what a replay found; empty: it is slow or has recovered
};

/// A resume or a rollback.
struct RunEvent {
  enum class Kind { resume, rollback };
  Kind kind = Kind::resume;
  int64_t step = 0;  ///< completed steps with which the run went on
  int64_t from = 0;  ///< completed steps before it, as far as metrics.jsonl knows
  double wall_time = 0;
  std::string text;  ///< ranks of a resume and a job script's reason for it, reason of a rollback
};

/// A step whose update was omitted, since its loss or gradient norm was not finite or ran away.
struct BadStep {
  int64_t step = 0;
  double loss = 0, grad_norm = 0;
};

/// Text that the run wrote as a sample.
struct RunSample {
  int64_t step = 0;
  std::string prompt, text;
};

/// Confusion matrix of an evaluation: numbers of texts or tokens, a row for each true label, by predicted ones.
struct Confusion {
  int64_t step = 0;
  std::vector<std::string> labels;
  std::vector<std::vector<int64_t>> counts;  ///< [K][K]
};

/// Contents of the lines of metrics.jsonl. After a resume or a rollback what belongs to later steps is removed.
struct MetricsLines {
  std::map<std::string, MetricSeries> metrics;
  std::vector<RunEvent> events;
  std::vector<NodeEvent> node_events;
  std::vector<RunSample> samples;
  std::vector<int64_t> best_steps;
  std::vector<Confusion> confusions;  ///< the last one
  int64_t last_step = 0;
  double wall_time = 0;
  int64_t lines = 0, bad_lines = 0;
  int64_t first_bad_line = 0;  ///< counts from 1; 0: none

  void take(std::string_view line);
};

/// Contents of the lines of ledger.jsonl.
struct LedgerLines {
  std::vector<BadStep> bad_steps;
  int64_t last_step = 0;

  void take(std::string_view line);
};

}  // namespace llmtrain
