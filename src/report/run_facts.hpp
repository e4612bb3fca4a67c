#pragma once
// Facts of runs for summaries: their state, best and last values, times by phase, and keys in which decks differ.

#include <string>
#include <vector>

#include "report/charts/metric_info.hpp"
#include "report/run_reader.hpp"

namespace llmtrain {

/// "finished", "running: 120 of 300 steps", "stopped: 120 of 300 steps"
std::string state_text(const RunReader& run);

/// A metric's last value, or its best, for tables; "-" where the run has no value.
MetricPoint last_of(const RunReader& run, const std::string& metric);
MetricPoint best_of(const RunReader& run, const std::string& metric);
std::string point_text(const std::string& metric, const MetricPoint& point);

/// Energy of the run and of a token of its passes: "1.5 kJ, 0.25 J per token"; "-" where it was not measured.
std::string energy_text(const RunReader& run);

struct PhaseTime {
  std::string name;
  double seconds = 0;
};

/// Seconds of the run by phase, from the means of the intervals; the rest is "other". Empty without such metrics.
std::vector<PhaseTime> phase_times(const RunReader& run);

/// A key of which the runs have different values; "" where a run does not have it.
struct DeckDifferenceOfRuns {
  std::string key;  ///< section.key
  std::vector<std::string> values;
};

/// Keys in the order of decks, but for the run's name and folder, and defaults that other runs have no key for.
std::vector<DeckDifferenceOfRuns> deck_differences(const std::vector<RunReader>& runs);

/// Reads the runs. Throws UserError(missing_input) if none of them has metrics.
std::vector<RunReader> read_runs(const std::vector<std::filesystem::path>& folders);

}  // namespace llmtrain
