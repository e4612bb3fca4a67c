#pragma once
// The watchdog ends a job in which a rank would wait for ever. Two threads per rank make no MPI call before the end:
//
// - The file thread publishes the state of this rank in its node's memory every few seconds, and reads the others' once
//   this rank has made no progress for a while. One rank of the node replaces the node's small file, see
//   status_board.hpp. The thread may hang with the file system.
// - The memory thread reads only memory: the progress of this rank, and the results of the file thread. When a rank is
//   lost (no heartbeat; its process is gone) or stuck (alive, working, no progress within the deadline of its section),
//   one rank prints the state of every rank and ends the job with exit code 76.
//
// A wait in a collective has no deadline of its own: the rank that keeps the others waiting has one.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/communicator.hpp"
#include "parallel/job/rank_status.hpp"

namespace llmtrain {

// Detection of lost or stuck ranks, and its message: pure functions of the observations.

/// Limits in seconds; see WatchdogConfig.
struct WatchdogLimits {
  double lost_after = 120;
  double stuck_after = 900;
  double io_stuck_after = 1800;
};

/// State of a rank as another rank observes it.
struct ObservedRank {
  std::optional<RankStatus> status;  ///< the newest readable status
  double silent = 0;                 ///< seconds of observation without a new status
  ProcessState process = ProcessState::unknown;
};

struct Verdict {
  enum class Cause : uint8_t { gone, silent, stuck, no_file_system, nobody_moves };
  Cause cause;
  std::vector<int> ranks;  ///< ranks at fault
  double seconds = 0;      ///< seconds without heartbeat or progress
};

/// Deadline that exceeds the longest work item of the section so far, so that slow work is never stuck.
double deadline_of(Section section, bool in_file_call, double longest, const WatchdogLimits& limits);

/// Verdict of the rank `own`, which has made no progress for a while, from its observations of the others.
std::optional<Verdict> find_verdict(const std::vector<ObservedRank>& ranks, int own, const WatchdogLimits& limits);

/// Hosts of ranks that are silent, stuck or behind the others, one a line; "" for other causes.
std::string hosts_at_fault(const Verdict& verdict, const std::vector<ObservedRank>& ranks);

/// Message for the user: what is wrong, and the state of every rank.
std::string report(const Verdict& verdict, const std::vector<ObservedRank>& ranks);

struct WatchOptions {
  std::string folder;  ///< folder of the files, visible to all ranks
  /// File for a job script, which the rank that ends the job writes: names of the hosts at fault, one a line. It is
  /// empty if processes are gone, which tells nothing about their hosts. Empty path: no such file.
  std::string lost_nodes;
  WatchdogLimits limits;
  /// Returns true if this process was asked to end and will soon be killed, as launchers do when a rank is lost.
  std::function<bool()> ending;
};

class Watchdog {
 public:
  /// Collective. If some rank cannot write into the folder, each rank watches only itself, see note().
  Watchdog(const WatchOptions& options, Communicator& communicator);
  /// Not collective. Rank 0 removes the files: all ranks have ended.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Note for the user; usually empty.
  const std::string& note() const { return note_; }

 private:
  struct State;
  std::shared_ptr<State> state_;  ///< shared with the threads, one of which may never return from the file system
  std::string note_;
};

}  // namespace llmtrain
