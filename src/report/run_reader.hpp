#pragma once
// Reader of a run's folder, for reports, comparisons and the dashboard: it reads files only, and holds no lock. Files
// may grow, shrink, vanish or end within a line while they are read.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace llmtrain {

/// Values of a metric by step. Steps ascend; of a step that was done again after a resume or a rollback the last value
/// stands.
struct MetricSeries {
  std::vector<int64_t> steps;
  std::vector<double> values;  ///< NaN where metrics.jsonl has null
};

/// A line of metrics.jsonl that is neither a step nor an evaluation.
struct RunEvent {
  enum class Kind { resume, rollback };
  Kind kind = Kind::resume;
  int64_t step = 0;  ///< completed steps with which the run went on
  int64_t from = 0;  ///< of a rollback: completed steps before it
  double wall_time = 0;
  std::string text;  ///< ranks of a resume, reason of a rollback
};

/// A line of deck.ini.
struct DeckEntry {
  std::string section, key, value;
  std::string provenance;  ///< as the comment says: deck, command line, default, ...
};

/// Text that the run wrote as a sample.
struct RunSample {
  int64_t step = 0;
  std::string prompt, text;
};

class RunReader {
 public:
  /// The files are not read before `refresh`. `folder`: runs/NAME.
  explicit RunReader(std::filesystem::path folder);

  /// Reads what the files have more. A file that has become shorter, or another, is read again from its start. Returns
  /// true if anything has changed. The state of files never throws: `problem` says what is wrong.
  bool refresh();

  const std::filesystem::path& folder() const { return folder_; }
  std::string name() const { return folder_.filename().string(); }

  /// By name as in metrics.jsonl; times of phases as "seconds/step", "seconds/data", ...; of evaluations the names
  /// begin with "validation_", but for "evaluation_seconds".
  const std::map<std::string, MetricSeries>& metrics() const { return metrics_; }
  const std::vector<RunEvent>& events() const { return events_; }
  const std::vector<DeckEntry>& deck() const { return deck_; }
  const std::vector<RunSample>& samples() const { return samples_; }

  /// Last `lines` lines of log.txt; lines of more than 1,000 bytes are cut.
  std::vector<std::string> log_tail(size_t lines) const;

  int64_t last_step() const;
  int64_t max_steps() const;                ///< 0: unknown
  double wall_time() const;                 ///< seconds of training
  std::vector<int64_t> best_steps() const;  ///< steps of evaluations that were the best so far
  bool finished() const;                    ///< the run has reached its end
  bool running() const;                     ///< its lock is held by a process that can be seen, or its files change
  const std::string& problem() const { return problem_; }  ///< "" if the folder is that of a run and can be read

 private:
  std::filesystem::path folder_;
  std::map<std::string, MetricSeries> metrics_;
  std::vector<RunEvent> events_;
  std::vector<DeckEntry> deck_;
  std::vector<RunSample> samples_;
  std::string problem_;
};

/// Runs of the arguments: each is a run's folder, or a folder of such (not deeper), in the order of names. Throws
/// UserError for one that is neither.
std::vector<std::filesystem::path> run_folders(const std::vector<std::string>& arguments);

}  // namespace llmtrain
