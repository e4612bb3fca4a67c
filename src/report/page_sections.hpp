#pragma once
// Sections of the report as HTML. Each returns "" if there is nothing to show.

#include <span>
#include <string>
#include <vector>

#include "report/charts/chart_plan.hpp"
#include "report/run_reader.hpp"

namespace llmtrain {

std::string summary_section(const RunReader& run);
/// Table of the runs, with the keys in which their decks differ and their results; and parallel coordinates.
std::string comparison_section(const std::vector<RunReader>& runs);
std::string charts_section(const std::vector<RunReader>& runs, const std::vector<Chart>& charts);
std::string time_section(const std::vector<RunReader>& runs);
std::string events_section(const std::vector<RunReader>& runs);
std::string samples_section(const std::vector<RunReader>& runs);
/// Precision, recall and F1 of each label, and the confusion matrix, of the last evaluation.
std::string labels_section(const std::vector<RunReader>& runs);
std::string numbers_section(const std::vector<RunReader>& runs);
std::string deck_section(const std::vector<RunReader>& runs);
std::string environment_section(const std::vector<RunReader>& runs);

/// Names of the metrics that tables of results show, of all runs: losses and what should rise, at most 12.
std::vector<std::string> result_metrics(std::span<const RunReader> runs);

}  // namespace llmtrain
