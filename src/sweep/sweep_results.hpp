#pragma once
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "report/charts/metric_info.hpp"
#include "sweep/power_law.hpp"
#include "sweep/sweep_file.hpp"

namespace llmtrain {

/// Best and last values of a run so far.
struct SweepResult {
  SweepRun run;
  std::string state;               ///< "finished", "running: 120 of 300 steps", "not begun", ...
  MetricPoint best;                ///< of sweep.metric; NaN: none yet
  std::optional<LossPoint> point;  ///< of a finished run: its last loss, if the metric is one
};

/// Reads the runs in `folder`, which may go on meanwhile. The best run comes first, those without the metric last.
std::vector<SweepResult> read_results(const SweepFile& sweep, std::vector<SweepRun> runs,
                                      const std::filesystem::path& folder);

/// A table for a terminal, one as CSV, or one as JSON: {"metric", "runs": [{"name", "state", "best", "step", "values":
/// {"section.key": text or null}}]}.
std::string results_text(const SweepFile& sweep, std::span<const SweepResult> results, size_t width);
std::string results_csv(const SweepFile& sweep, std::span<const SweepResult> results);
std::string results_json(const SweepFile& sweep, std::span<const SweepResult> results);

/// A picture with an axis for each key and the metric, and a line for each run that has the metric; the best is thick.
std::string parallel_coordinates_svg(const SweepFile& sweep, std::span<const SweepResult> results);

/// The law of the finished runs' losses, of each size and number of tokens the best, as text. Throws UserError, as
/// fit_power_law() does.
std::string power_law_text(std::span<const SweepResult> results);

}  // namespace llmtrain
