#pragma once
// Choice of the charts that show the metrics of one or several runs.

#include <string>
#include <vector>

#include "report/run_reader.hpp"

namespace llmtrain {

struct ChartLine {
  size_t run = 0;  ///< index
  std::string metric, label;
};

struct Chart {
  std::string section;  ///< heading over several charts; equal ones are neighbours
  std::string title;
  std::string unit;  ///< as metric_unit
  bool logarithmic = false;
  std::vector<ChartLine> lines;
  size_t left_out = 0;  ///< lines beyond `most_chart_lines`
};

inline constexpr size_t most_chart_lines = 64;
inline constexpr size_t plot_buckets = 400;  ///< for a plot that is about as many pixels wide

/// Charts of all metrics but step counts: of one run with related metrics together, of several runs one metric each.
std::vector<Chart> plan_charts(const std::vector<RunReader>& runs);

/// Buckets of the curves of a page: fewer than `plot_buckets` if there are so many lines that the page becomes large.
size_t buckets_of_plots(const std::vector<Chart>& charts);

/// Part of a curve for a plot: at most 4 * `buckets` + 2 points, among them the first, the last and the lowest and
/// highest of every bucket of neighbours; and of a gap in a bucket one NaN.
MetricSeries reduced_curve(const MetricSeries& series, size_t buckets);
/// JSON of the reduced points from number `from` on, [[steps], [values]]; null for a value that is not finite.
std::string curve_json(const MetricSeries& series, size_t buckets, size_t from = 0);

}  // namespace llmtrain
