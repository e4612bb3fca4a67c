#pragma once
// Requests to save or to stop a run: signals to any rank, files in the run's folder, the end of its time.

#include <cstdint>
#include <string>

#include "checkpoint/checkpoint_config.hpp"
#include "config/run_config.hpp"

namespace llmtrain {

/// Installs handlers that record SIGTERM, SIGINT, SIGUSR1 and SIGUSR2; repeated calls are harmless. If the parent
/// process has blocked these signals, pending ones are recorded too.
void install_signal_handlers();
/// Restores the default action, also for a signal that arrived in the meantime.
void restore_default_signals();
/// The received signal, or 0.
int received_signal();

/// One per job. While it lives, look_for_stop() also checks files and the clock.
class StopMonitor {
 public:
  /// Rank 0 checks the files and the clock.
  StopMonitor(const RunConfig& run, const CheckpointConfig& checkpoint, bool root);
  /// Removes the file STOP if it was seen, so that the next job does not find it.
  ~StopMonitor();
  StopMonitor(const StopMonitor&) = delete;
  StopMonitor& operator=(const StopMonitor&) = delete;

  /// Requests on which ranks agree by their maximum; 0: none.
  struct Request {
    int64_t stop = 0;  ///< see StopCode
    int64_t save = 0;
  };
  /// `needed`: seconds from now until the end of the next check and a subsequent save.
  Request requested(double needed);
  /// Records that a save has started (for any reason): restarts the clock for every_minutes and removes the file SAVE.
  void saved();

 private:
  void look_for_files();

  std::string folder_;
  bool root_;
  double every_seconds_;
  double start_, last_save_, last_look_ = -1e9;
  double end_ = 0;  ///< in seconds of the steady clock; 0: none
  Request files_;
};

}  // namespace llmtrain
