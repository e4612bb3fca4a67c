#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/arena.hpp"
#include "metrics/console.hpp"
#include "metrics/run_log.hpp"
#include "tasks/tasks.hpp"
#include "train/run/run_directory.hpp"
#include "train/run/stop_monitor.hpp"

namespace llmtrain {

/// Decides an automatic precision.compute, and adds notes about keys that this device does not support.
void decide_compute(const Config& deck, RunFacts& facts, bool fast_bf16);
/// True if rank 0's device is fast at bf16. Collective.
bool agreed_fast_bf16(Communicator& communicator);
/// Prints the notes to stderr, since programs may read the requested output on stdout.
void print_notes(std::span<const std::string> notes);

/// Opens what every job needs before its work, in this order: the run directory, the monitor of requests to stop, the
/// watchdog, a console for the lines before the log, and the log. Calls are collective, but those of lines.
class JobOpening {
 public:
  /// Checks that the files of a finished run are those of the deck, which names them differently. `directory`: on rank
  /// 0, else null.
  using FileCheck = std::function<void(const RunDirectory* directory)>;

  /// Tells the user if the run is finished. Without a check, a finished run with other names of files is refused.
  explicit JobOpening(Job& job, const FileCheck& check = nullptr);

  /// True if nothing is left to do.
  bool is_finished() const { return !stop_monitor_.has_value(); }
  StopMonitor& stop_monitor() { return *stop_monitor_; }
  /// Calls work(directory) on rank 0; its error is one of all ranks.
  void on_root(const std::function<void(RunDirectory&)>& work);
  /// Empties the directory of a new run, and writes the resolved deck.
  void start_directory();
  /// Prints a line, which log.txt gets, too.
  void print(const std::string& text);

  /// Options of the log files and the console, which a task completes.
  RunLogOptions log_options(const Arena& plan) const;
  RunLog& open_log(const RunLogOptions& options);
  /// Marks the run as finished, after everything else is on disk.
  void mark_finished(int64_t steps = 0);

 private:
  void watch_ranks();

  Job& job_;
  Communicator& communicator_ = job_.runtime.communicator();
  std::optional<RunDirectory> directory_;  ///< on rank 0
  std::optional<StopMonitor> stop_monitor_;
  Console console_{"", communicator_.rank() == 0};
  std::vector<std::string> earlier_;
  std::optional<RunLog> log_;
};

}  // namespace llmtrain
