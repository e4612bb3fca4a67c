#pragma once
// What asks a run to save or to stop: signals to any rank, files in the run's folder, the end of its time.

#include <cstdint>
#include <string>

#include "train/config.hpp"

namespace llmtrain {

/// From now on SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 are noted rather than deadly; again and again does no harm.
void note_signals();
/// The signal that came, or 0.
int noted_signal();

class Interruption {
 public:
  /// `folder`: of the run. Rank 0 looks for files there and at the clock.
  Interruption(const Config& config, std::string folder, bool root);

  /// Codes that ranks agree on by their maximum; 0: nothing is asked for.
  struct Wish {
    int64_t stop = 0;
    int64_t save = 0;
  };
  /// `needed`: seconds that one more step and a save would take.
  Wish wish(double needed);
  /// The text for a stop of this code, e.g. "SIGTERM", "the file STOP".
  static std::string reason(int64_t stop);
  /// A save began (for whatever cause), so that the clock for every_minutes starts again and the file SAVE is gone.
  void saved();
  /// Removes the file STOP, so that the next job does not find it.
  void stopped() const;

 private:
  std::string folder_;
  bool root_;
  bool signals_;
  double every_seconds_;
  double start_, last_save_, last_look_ = -1e9;
  double end_ = 0;  ///< in seconds of the steady clock; 0: none
  Wish files_;
};

}  // namespace llmtrain
