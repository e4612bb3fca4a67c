#include "report/charts/metric_info.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/number_text.hpp"

namespace llmtrain {
namespace {

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

template <class IsBetter>
MetricPoint extreme_point(const MetricSeries& series, const IsBetter& is_better) {
  MetricPoint best{0, std::numeric_limits<double>::quiet_NaN()};
  for (size_t i = 0; i < series.values.size(); ++i) {
    const double value = series.values[i];
    if (std::isfinite(value) && (std::isnan(best.value) || is_better(value, best.value))) {
      best = {series.steps[i], value};
    }
  }
  return best;
}

}  // namespace

Better better_values(std::string_view metric) {
  if (metric.ends_with("loss") || metric.ends_with("loss_mean") || metric.ends_with("perplexity")) return Better::lower;
  if (metric.ends_with("/std") || metric.ends_with("_std")) return Better::unknown;
  constexpr std::array<std::string_view, 12> higher = {"accurac",          "margins",   "/acc",  "reward",
                                                       "objective/scores", "bleu",      "chrf",  "exact_match",
                                                       "token_f1",         "bertscore", "rouge", "tokens_per_second"};
  if (metric.ends_with("/rejected")) return Better::unknown;
  return std::ranges::any_of(higher, [&](std::string_view part) { return has(metric, part); }) ? Better::higher
                                                                                               : Better::unknown;
}

std::string_view metric_unit(std::string_view metric) {
  if (metric.starts_with("memory") || metric.ends_with("_bytes")) return "bytes";
  if (metric.starts_with("seconds/") || has(metric, "seconds")) return "seconds";
  if (metric == "wall_time") return "seconds";
  if (metric.ends_with("bytes_per_second")) return "bytes/s";
  if (metric == "tokens_per_second") return "tokens/s";
  if (metric == "flops_per_second") return "FLOP/s";
  if (has(metric, "joules")) return "J";
  if (metric.ends_with("percent")) return "%";
  return "";
}

std::string metric_text(std::string_view metric, double value) {
  if (!std::isfinite(value)) return std::isnan(value) ? "-" : value > 0 ? "inf" : "-inf";
  const std::string_view unit = metric_unit(metric);
  if (unit == "bytes") return bytes_text(value);
  if (unit == "bytes/s") return bytes_text(value) + "/s";
  if (unit == "tokens/s") return with_unit(value, "tok/s");
  if (unit == "FLOP/s") return with_unit(value, "FLOP/s");
  if (unit == "J") return value < 1 ? fmt::format("{:.3g} J", value) : with_unit(value, "J");
  if (unit == "seconds" && value >= 60) return duration(value);
  if (unit == "seconds" && value > 0 && value < 1) return fmt::format("{:.3g} ms", 1000 * value);
  const bool whole = value == std::floor(value) && std::abs(value) < 1e15;
  const std::string number = whole ? fmt::format("{:.0f}", value) : fmt::format("{:.4g}", value);
  return unit == "seconds" ? number + " s" : unit == "%" ? number + " %" : number;
}

MetricPoint last_point(const MetricSeries& series) {
  if (series.steps.empty()) return {0, std::numeric_limits<double>::quiet_NaN()};
  return {series.steps.back(), series.values.back()};
}

MetricPoint lowest_point(const MetricSeries& series) { return extreme_point(series, std::less<>()); }
MetricPoint highest_point(const MetricSeries& series) { return extreme_point(series, std::greater<>()); }

MetricPoint best_point(std::string_view metric, const MetricSeries& series) {
  switch (better_values(metric)) {
    case Better::lower:
      return lowest_point(series);
    case Better::higher:
      return highest_point(series);
    case Better::unknown:
      break;
  }
  return {0, std::numeric_limits<double>::quiet_NaN()};
}

}  // namespace llmtrain
