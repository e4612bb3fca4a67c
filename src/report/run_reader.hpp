#pragma once
// Reader of a run's folder, for reports, comparisons and the dashboard: it reads files only, and holds no lock. Files
// may grow, shrink, vanish or end within a line while they are read.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "report/metrics_lines.hpp"

namespace llmtrain {

/// Lines of a file to which another process appends.
class FollowedFile {
 public:
  explicit FollowedFile(std::filesystem::path path) : path_(std::move(path)) {}

  /// Calls take(line) for every complete line that is new, without its end. If the file has become shorter, another or
  /// unreadable, `restart` is called first, and the lines begin again. Returns true if either was called. Lines of more
  /// than 16 MiB are left out.
  bool read(const std::function<void()>& restart, const std::function<void(std::string_view)>& take);

  /// Reason why the last read failed, or "".
  const std::string& problem() const { return problem_; }

 private:
  bool is_continued(int file) const;
  bool read_lines(int file, const std::function<void(std::string_view)>& take);

  std::filesystem::path path_;
  int64_t end_ = 0;   ///< offset after the last complete line
  std::string last_;  ///< last bytes before `end_`, by which another file is noticed
  std::string problem_;
};

/// A line of a run's deck.ini, as the program prints it.
struct DeckEntry {
  std::string section, key, value;
  std::string provenance;  ///< as the comment says: deck, command line, default, ...
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
  const std::map<std::string, MetricSeries>& metrics() const { return log_.metrics; }
  const std::vector<RunEvent>& events() const { return log_.events; }
  const std::vector<NodeEvent>& node_events() const { return log_.node_events; }
  const std::vector<BadStep>& bad_steps() const { return ledger_.bad_steps; }
  const std::vector<Confusion>& confusions() const { return log_.confusions; }
  const std::vector<DeckEntry>& deck() const { return deck_; }
  const std::vector<RunSample>& samples() const { return log_.samples; }

  /// Value of a key, "" where the deck has none.
  std::string deck_value(std::string_view section, std::string_view key) const;

  /// Last `lines` lines of log.txt; lines of more than 1,000 bytes are cut.
  std::vector<std::string> log_tail(size_t lines) const;

  /// First lines of log.txt, cut in the same way: they describe machine, model and data.
  std::vector<std::string> log_head(size_t lines) const;

  int64_t last_step() const { return last_step_; }
  int64_t max_steps() const { return max_steps_; }                            ///< 0: unknown
  double wall_time() const { return log_.wall_time; }                         ///< seconds of training
  const std::vector<int64_t>& best_steps() const { return log_.best_steps; }  ///< evaluations that were the best so far
  bool finished() const { return finished_; }                                 ///< the run has reached its end
  bool running() const;  ///< its lock is held by a process that can be seen, or its files change
  const std::string& problem() const { return problem_; }  ///< "" if the folder is that of a run and can be read

 private:
  bool read_deck();
  int64_t find_max_steps() const;
  std::string find_problem() const;

  std::filesystem::path folder_;
  FollowedFile metrics_file_, ledger_file_;
  MetricsLines log_;
  LedgerLines ledger_;
  std::string deck_text_;
  std::vector<DeckEntry> deck_;
  int64_t last_step_ = 0, max_steps_ = 0;
  bool finished_ = false;
  std::string problem_;
};

/// Runs of the arguments: each is a run's folder, or a folder of such (not deeper), in the order of names. Throws
/// UserError for one that is neither.
std::vector<std::filesystem::path> run_folders(const std::vector<std::string>& arguments);

/// Runs in and below the folders, in the order of names: also what a task writes into the folder of a run, and runs in
/// folders of folders, down to three levels. Nothing that cannot be read is an error.
std::vector<std::filesystem::path> find_runs(const std::vector<std::string>& folders);

}  // namespace llmtrain
