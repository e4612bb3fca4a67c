#include "report/charts/chart_plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "core/find_entry.hpp"
#include "report/charts/metric_info.hpp"
#include "report/html_text.hpp"

namespace llmtrain {
namespace {

constexpr std::string_view validation = "validation_";

constexpr std::array<const char*, 4> section_names = {"Training", "Objective", "Speed and memory", "System"};

/// Metrics with a chart of their own name, in the order of charts.
struct KnownChart {
  std::string_view key;
  size_t section;
  const char* title;
  bool logarithmic;
};
constexpr std::array<KnownChart, 21> known_charts = {
    {{"loss", 0, "Loss", false},
     {"perplexity", 0, "Perplexity", true},
     {"token_accuracy", 0, "Token accuracy", false},
     {"learning_rate", 0, "Learning rate", false},
     {"grad_norm", 0, "Gradient norm", false},
     {"loss_scale", 0, "Loss scale", true},
     {"skipped_steps", 0, "Skipped steps", false},
     {"rewards", 1, "Rewards of answers", false},
     {"experts/load_max_by_layer", 1, "Load of the busiest expert by layer", false},
     {"experts/load_min_by_layer", 1, "Load of the idlest expert by layer", false},
     {"tokens_per_second", 2, "Tokens per second", false},
     {"samples_per_second", 2, "Samples per second", false},
     {"flops_per_second", 2, "FLOP per second", false},
     {"mfu", 2, "Share of the peak FLOP/s (MFU)", false},
     {"seconds", 2, "Time of a step by phase", false},
     {"memory", 2, "Memory", false},
     {"energy/joules", 2, "Energy of all nodes", false},
     {"energy/joules_per_token", 2, "Energy per token", false},
     {"evaluation_seconds", 2, "Time of an evaluation", false},
     {"tokens", 2, "Tokens of a step", false},
     {"validation_tokens", 2, "Tokens of an evaluation", false}}};

/// Metrics that share a chart.
constexpr std::array<std::pair<std::string_view, std::string_view>, 18> families = {
    {{"loss_mean", "loss"},
     {"rewards/chosen", "rewards"},
     {"rewards/rejected", "rewards"},
     {"rewards/margins", "rewards"},
     {"logps/chosen", "logps"},
     {"logps/rejected", "logps"},
     {"logits/chosen", "logits"},
     {"logits/rejected", "logits"},
     {"share/chosen", "share"},
     {"share/rejected", "share"},
     {"completions/mean_length", "completions/length"},
     {"completions/min_length", "completions/length"},
     {"completions/max_length", "completions/length"},
     {"completions/mean_terminated_length", "completions/terminated_length"},
     {"completions/min_terminated_length", "completions/terminated_length"},
     {"completions/max_terminated_length", "completions/terminated_length"},
     {"memory_libraries", "memory"},
     {"memory_planned", "memory"}}};

/// Returns the name between two slashes that a metric has for each host or statistic, and its place, or npos.
struct SplitName {
  std::string chart, line;
};
SplitName split_system_name(std::string_view metric) {
  const size_t first = metric.find('/'), last = metric.rfind('/');
  const std::string_view table = metric.substr(0, first);
  if (first == last) return {std::string(metric), table == "traffic" ? "all" : std::string(metric)};
  if (table == "system" || table == "traffic") {  // by host, by axis of the mesh
    return {std::string(table) + std::string(metric.substr(last)),
            std::string(metric.substr(first + 1, last - first - 1))};
  }
  return {std::string(metric.substr(0, last)), std::string(metric.substr(last + 1))};
}

/// The metric of a layer's experts, without the layer: "experts/layer_3/load_max" is line "layer_3" of a chart.
constexpr std::string_view of_layer = "experts/layer_";
SplitName split_layer_name(std::string_view metric) {
  const size_t last = metric.rfind('/');
  const std::string_view layer = metric.substr(metric.find('/') + 1);
  return {fmt::format("experts/{}_by_layer", metric.substr(last + 1)), std::string(layer.substr(0, layer.find('/')))};
}

bool is_system(std::string_view metric) {
  return metric.starts_with("system/") || metric.starts_with("ranks/") || metric.starts_with("traffic/");
}

std::string chart_of(std::string_view metric) {
  if (is_system(metric)) return split_system_name(metric).chart;
  if (metric.starts_with(of_layer)) return split_layer_name(metric).chart;
  if (metric.starts_with("seconds/")) return "seconds";
  if (metric.starts_with(validation) && metric != "validation_tokens") metric.remove_prefix(validation.size());
  for (const auto& [member, family] : families) {
    if (member == metric) return std::string(family);
  }
  return std::string(metric);
}

/// `count`: metrics of the chart; two that differ by the prefix are named by it alone.
std::string label_of(std::string_view metric, size_t count, bool with_validation) {
  if (is_system(metric)) return split_system_name(metric).line;
  if (metric.starts_with(of_layer)) return split_layer_name(metric).line;
  if (metric.starts_with("seconds/")) return std::string(metric.substr(8));
  if (metric == "loss_mean") return "training";
  if (metric == "validation_loss") return "validation";
  if (metric == "memory") return "in use";
  if (metric == "memory_libraries") return "in use before training";
  if (metric == "memory_planned") return "planned";
  const bool validates = metric.starts_with(validation);
  if (!with_validation) return std::string(metric);
  if (count <= 2) return validates ? "validation" : "training";
  if (!validates) return "training: " + std::string(metric);
  return "validation: " + std::string(metric.substr(validation.size()));
}

const KnownChart* find_known(std::string_view chart) { return find_entry(known_charts, chart, &KnownChart::key); }

size_t section_of(std::string_view chart) {
  if (const KnownChart* known = find_known(chart)) return known->section;
  return is_system(chart) ? 3 : 1;
}

/// Names of metrics by chart, in the order of charts.
struct PlannedChart {
  std::string key;
  std::vector<std::string> metrics;
};
std::vector<PlannedChart> group_metrics(const std::vector<RunReader>& runs) {
  std::map<std::string, std::set<std::string>> charts;
  std::set<std::string> names;
  for (const RunReader& run : runs) {
    for (const auto& [name, series] : run.metrics()) names.insert(name);
  }
  for (const std::string& name : names) {
    if (name == "wall_time" || name == "ranks" || (name == "loss" && names.contains("loss_mean"))) continue;
    charts[chart_of(name)].insert(name);
  }
  std::vector<PlannedChart> planned;
  planned.reserve(charts.size());
  for (const auto& [key, metrics] : charts) planned.push_back({key, {metrics.begin(), metrics.end()}});
  std::ranges::stable_sort(planned, {}, [](const PlannedChart& chart) {
    const KnownChart* known = find_known(chart.key);
    return std::pair(section_of(chart.key), known == nullptr ? std::ssize(known_charts) : known - known_charts.data());
  });
  return planned;
}

void add_line(Chart& chart, const std::vector<RunReader>& runs, size_t run, const std::string& metric,
              const std::string& label) {
  if (!runs[run].metrics().contains(metric)) return;
  if (chart.lines.size() == most_chart_lines) {
    ++chart.left_out;
  } else {
    chart.lines.push_back({run, metric, label});
  }
}

Chart empty_chart(const PlannedChart& planned) {
  const KnownChart* known = find_known(planned.key);
  Chart chart;
  chart.section = section_names[section_of(planned.key)];
  chart.title = known == nullptr ? planned.key : known->title;
  chart.unit = metric_unit(planned.metrics.front());
  chart.logarithmic = known != nullptr && known->logarithmic;
  return chart;
}

bool has_validation(const std::vector<std::string>& metrics) {
  return std::ranges::any_of(metrics, [](const std::string& name) { return name.starts_with(validation); });
}

}  // namespace

std::vector<Chart> plan_charts(const std::vector<RunReader>& runs) {
  std::vector<Chart> charts;
  for (const PlannedChart& planned : group_metrics(runs)) {
    const bool with_validation = has_validation(planned.metrics);
    const auto label = [&](const std::string& metric) {
      return label_of(metric, planned.metrics.size(), with_validation);
    };
    if (runs.size() == 1) {
      charts.push_back(empty_chart(planned));
      for (const std::string& metric : planned.metrics) add_line(charts.back(), runs, 0, metric, label(metric));
      continue;
    }
    for (const std::string& metric : planned.metrics) {
      charts.push_back(empty_chart(planned));
      Chart& chart = charts.back();
      if (planned.metrics.size() > 1) chart.title += ": " + label(metric);
      for (size_t run = 0; run < runs.size(); ++run) add_line(chart, runs, run, metric, runs[run].name());
    }
  }
  return charts;
}

size_t buckets_of_plots(const std::vector<Chart>& charts) {
  constexpr size_t max_points = 600'000, min_buckets = 25;
  size_t lines = 0;
  for (const Chart& chart : charts) lines += chart.lines.size();
  return std::clamp(max_points / (4 * std::max<size_t>(lines, 1)), min_buckets, plot_buckets);
}

MetricSeries reduced_curve(const MetricSeries& series, size_t buckets) {
  const size_t count = series.steps.size();
  if (count <= 4 * buckets + 2) return series;
  MetricSeries reduced;
  const auto keep = [&](size_t i) {
    reduced.steps.push_back(series.steps[i]);
    reduced.values.push_back(series.values[i]);
  };
  keep(0);
  for (size_t b = 0; b < buckets; ++b) {
    const size_t begin = 1 + b * (count - 2) / buckets, end = 1 + (b + 1) * (count - 2) / buckets;
    std::set<size_t> kept;
    size_t lowest = count, highest = count;
    for (size_t i = begin; i < end; ++i) {
      const double value = series.values[i];
      if (std::isnan(value)) {
        if (kept.empty()) kept.insert(i);
        continue;
      }
      if (lowest == count || value < series.values[lowest]) lowest = i;
      if (highest == count || value > series.values[highest]) highest = i;
    }
    for (const size_t i : {lowest, highest}) {
      if (i < count) kept.insert(i);
    }
    for (const size_t i : kept) keep(i);
  }
  keep(count - 1);
  return reduced;
}

std::string curve_json(const MetricSeries& series, size_t buckets, size_t from) {
  const auto begin = static_cast<std::ptrdiff_t>(from);
  const MetricSeries rest{{series.steps.begin() + begin, series.steps.end()},
                          {series.values.begin() + begin, series.values.end()}};
  const MetricSeries curve = reduced_curve(rest, buckets);
  std::string values;
  for (const double value : curve.values) values += (values.empty() ? "" : ",") + json_number(value);
  return fmt::format("[[{}],[{}]]", fmt::join(curve.steps, ","), values);
}

}  // namespace llmtrain
