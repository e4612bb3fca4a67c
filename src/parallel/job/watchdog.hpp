#pragma once
// Sees to it that no rank waits for ever. Two threads per rank, which make no MPI call before the end:
//
// - One tells the others where this rank is, through a small file that it replaces every few seconds, and reads
//   theirs once this rank has made no progress for a while. It may hang with the file system.
// - One looks at memory only: at the progress of this rank, and at what the first has read. When a rank is lost (no
//   sign of life; its process is gone) or stuck (alive, at work, no progress within the deadline of its section), one
//   rank prints where every rank is and ends the job with
//   exit code 76.
//
// Waiting in a collective has no deadline of its own: whoever keeps the others waiting has one.

#include <functional>
#include <memory>
#include <string>

#include "parallel/communicator.hpp"
#include "parallel/job/watchdog_verdict.hpp"

namespace llmtrain {

struct WatchOptions {
  std::string folder;  ///< of the files; seen by all ranks
  WatchdogLimits limits;
  /// Whether this process was asked to end by somebody who will soon kill it, as launchers do when a rank is lost.
  std::function<bool()> ending;
};

class Watchdog {
 public:
  /// Collective. Where some rank cannot write into the folder each rank watches itself alone, see note().
  Watchdog(const WatchOptions& options, Communicator& communicator);
  /// Not collective. Rank 0 removes the files: all ranks have come to their end.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// What the user should know; mostly empty.
  const std::string& note() const { return note_; }

 private:
  struct State;
  std::shared_ptr<State> state_;  ///< shared with the threads, one of which may never come back from the file system
  std::string note_;
};

}  // namespace llmtrain
