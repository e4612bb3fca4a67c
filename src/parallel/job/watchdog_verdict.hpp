#pragma once
// Detection of lost or stuck ranks, and its message. Pure functions of the observations.

#include <optional>
#include <string>
#include <vector>

#include "parallel/job/rank_status.hpp"

namespace llmtrain {

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

/// Message for the user: what is wrong, and the state of every rank.
std::string report(const Verdict& verdict, const std::vector<ObservedRank>& ranks);

}  // namespace llmtrain
