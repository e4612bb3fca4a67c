#pragma once
// Facts that a metric's name tells: its unit, and which values are better.

#include <string>
#include <string_view>

#include "report/metrics_lines.hpp"

namespace llmtrain {

enum class Better { unknown, lower, higher };

Better better_values(std::string_view metric);

/// "bytes", "bytes/s", "seconds", "tokens/s", "FLOP/s", "%", or "" for plain numbers.
std::string_view metric_unit(std::string_view metric);

/// Formats a value for people, with its unit: "3.40 GiB", "0.9123".
std::string metric_text(std::string_view metric, double value);

/// A value and the step at which it was.
struct MetricPoint {
  int64_t step = 0;
  double value = 0;  ///< NaN if no value is finite
};

MetricPoint last_point(const MetricSeries& series);
MetricPoint lowest_point(const MetricSeries& series);
MetricPoint highest_point(const MetricSeries& series);
/// The lowest or highest value, or one of NaN if the name does not say which is better.
MetricPoint best_point(std::string_view metric, const MetricSeries& series);

}  // namespace llmtrain
