#pragma once
// Comparison of runs in a terminal or for programs: keys in which their decks differ, best and last values.

#include <cstddef>
#include <string>
#include <vector>

#include "report/run_reader.hpp"

namespace llmtrain {

/// Aligned text, safe for a terminal: a column for each of a few runs, or a line for each of many. Columns for which
/// `width` characters do not suffice come below the others.
std::string comparison_text(const std::vector<RunReader>& runs, size_t width);

/// {"runs": [{"name", "folder", "state", "finished", "steps", "max_steps", "wall_time", "problem"}], "differences":
/// {"section.key": [value or null]}, "metrics": {name: {"last", "last_step", "best", "best_step": [number or null]}}},
/// the arrays in the order of runs; best is null where the metric's name does not say which values are better.
std::string comparison_json(const std::vector<RunReader>& runs);

}  // namespace llmtrain
