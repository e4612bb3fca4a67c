#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "metrics/records.hpp"

namespace llmtrain {

/// Times of one rank over a log interval.
struct RankTimes {
  double steps = 0;
  double seconds = 0;         ///< of all steps
  StepRecord::Phases phases;  ///< sums over the steps, seconds
  double own_seconds = 0;     ///< of the rank's own passes and reading, without waiting for other ranks
  double own_tokens = 0;      ///< tokens of these passes

  void add(const StepRecord& record);
};

/// Minimum, median and maximum over the ranks of the mean seconds of a step and of its parts:
/// "ranks/step_seconds/max", ...
std::vector<NamedValue> rank_values(std::span<const RankTimes> ranks);

/// Seconds of own work a token, relative to the median of the ranks (of two: to the faster one). NaN for a rank without
/// own work, and if fewer than two have some.
std::vector<double> own_ratios(std::span<const RankTimes> ranks);

}  // namespace llmtrain
