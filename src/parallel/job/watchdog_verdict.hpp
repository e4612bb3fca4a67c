#pragma once
// When is a rank lost or stuck, and how is that said. Pure functions of what is known.

#include <optional>
#include <string>
#include <vector>

#include "parallel/job/rank_status.hpp"

namespace llmtrain {

/// Seconds; see WatchdogConfig.
struct WatchdogLimits {
  double lost_after = 120;
  double stuck_after = 900;
  double io_stuck_after = 1800;
};

/// One rank as another sees it.
struct ObservedRank {
  std::optional<RankStatus> status;  ///< the newest that could be read
  double silent = 0;                 ///< seconds without a new one, while the observer looked
  ProcessState process = ProcessState::unknown;
};

struct Verdict {
  enum class Cause : uint8_t { gone, silent, stuck, no_file_system, nobody_moves };
  Cause cause;
  std::vector<int> ranks;  ///< at fault
  double seconds = 0;      ///< how long there was no sign of life, or no progress
};

/// For the longest piece of work in this section so far: what is slow but moves is never stuck.
double deadline_of(Section section, bool in_file_call, double longest, const WatchdogLimits& limits);

/// What `own`, which has made no progress for a while, concludes from what it sees of the others.
std::optional<Verdict> find_verdict(const std::vector<ObservedRank>& ranks, int own, const WatchdogLimits& limits);

/// Lines for people: what is wrong, and where every rank is.
std::string report(const Verdict& verdict, const std::vector<ObservedRank>& ranks);

}  // namespace llmtrain
