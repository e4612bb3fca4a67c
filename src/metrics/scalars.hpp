#pragma once
// Names and values of a run's records as TensorBoard and W&B show them: GROUP/NAME, where a group is a panel.

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "metrics/sink.hpp"

namespace llmtrain {

inline constexpr const char* validation_group = "validation/";
inline constexpr const char* samples_group = "samples/";
inline constexpr const char* grad_norm_histogram = "histograms/grad_norm";

struct Scalar {
  std::string name;
  double value = 0;
};

/// The loss is the mean of the interval, the rest is of its last step; NaN where there is no value.
std::vector<Scalar> scalars_of(const IntervalRecord& record);
std::vector<Scalar> scalars_of(const EvaluationRecord& record);

/// Counts of the finite values in `bins` equal intervals between their minimum and maximum.
struct Histogram {
  std::vector<double> edges;    ///< bins + 1, ascending
  std::vector<int64_t> counts;  ///< bins
  double sum = 0, sum_of_squares = 0;
  int64_t count = 0;  ///< 0: there is no finite value, and no bin
};
Histogram histogram_of(const std::vector<double>& values, size_t bins);

/// Replaces every byte that is not part of well-formed UTF-8 by U+FFFD.
std::string with_valid_utf8(std::string_view text);

/// A value of the deck: numbers and booleans as such, for axes and filters.
std::variant<bool, double, std::string> typed_value(const std::string& text);

}  // namespace llmtrain
