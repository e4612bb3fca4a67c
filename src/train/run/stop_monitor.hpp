#pragma once
// What asks a run to save or to stop: signals to any rank, files in the run's folder, the end of its time.

#include <cstdint>
#include <string>

#include "train/config/config.hpp"

namespace llmtrain {

/// From now on SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 are noted rather than deadly; again and again does no harm. If
/// whoever started the program has blocked them, those that came since then are noted, too.
void install_signal_handlers();
/// They are as deadly again as before, one that came in the meantime, too.
void restore_default_signals();
/// The signal that came, or 0.
int received_signal();

/// One per job. While it lives, look_for_stop() sees files and clock, too.
class StopMonitor {
 public:
  /// `folder`: of the run. Rank 0 looks for files there and at the clock.
  StopMonitor(const Config& config, std::string folder, bool root);
  /// Removes the file STOP if it was seen, so that the next job does not find it.
  ~StopMonitor();
  StopMonitor(const StopMonitor&) = delete;
  StopMonitor& operator=(const StopMonitor&) = delete;

  /// Ranks agree on both by their maximum; 0: nothing is asked for.
  struct Request {
    int64_t stop = 0;  ///< see StopCode
    int64_t save = 0;
  };
  /// `needed`: seconds from now until the next look and a save after it are over.
  Request requested(double needed);
  /// A save began (for whatever cause), so that the clock for every_minutes starts again and the file SAVE is gone.
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
