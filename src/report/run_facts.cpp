#include "report/run_facts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>

#include "core/error.hpp"

namespace llmtrain {
namespace {

MetricPoint point_of(const RunReader& run, const std::string& metric,
                     MetricPoint (*choose)(std::string_view, const MetricSeries&)) {
  const auto found = run.metrics().find(metric);
  if (found == run.metrics().end()) return {0, std::numeric_limits<double>::quiet_NaN()};
  return choose(metric, found->second);
}

/// Sum over steps of a mean by interval, each of which ends with its step.
double sum_over_steps(const MetricSeries& series) {
  double sum = 0;
  int64_t before = 0;
  for (size_t i = 0; i < series.steps.size(); ++i) {
    const double value = series.values[i];
    if (std::isfinite(value)) sum += value * static_cast<double>(series.steps[i] - before);
    before = series.steps[i];
  }
  return sum;
}

}  // namespace

std::string state_text(const RunReader& run) {
  if (run.finished()) return "finished";
  const std::string total = run.max_steps() > 0 ? fmt::format(" of {}", run.max_steps()) : "";
  return fmt::format("{}: {}{} steps", run.running() ? "running" : "stopped", run.last_step(), total);
}

MetricPoint last_of(const RunReader& run, const std::string& metric) {
  return point_of(run, metric, [](std::string_view, const MetricSeries& series) { return last_point(series); });
}

MetricPoint best_of(const RunReader& run, const std::string& metric) { return point_of(run, metric, best_point); }

std::string point_text(const std::string& metric, const MetricPoint& point) { return metric_text(metric, point.value); }

std::string energy_text(const RunReader& run) {
  const MetricPoint all = last_of(run, "energy/joules");
  if (std::isnan(all.value)) return "-";
  return fmt::format("{}, {} per token", point_text("energy/joules", all),
                     point_text("energy/joules_per_token", last_of(run, "energy/joules_per_token")));
}

std::vector<PhaseTime> phase_times(const RunReader& run) {
  constexpr std::string_view prefix = "seconds/";
  std::vector<PhaseTime> times;
  double sum = 0;
  for (const auto& [name, series] : run.metrics()) {
    if (!name.starts_with(prefix) || name == "seconds/step") continue;
    times.push_back({name.substr(prefix.size()), sum_over_steps(series)});
    std::ranges::replace(times.back().name, '_', ' ');
    sum += times.back().seconds;
  }
  if (const auto found = run.metrics().find("evaluation_seconds"); found != run.metrics().end()) {
    double seconds = 0;
    for (const double value : found->second.values) seconds += std::isfinite(value) ? value : 0;
    times.push_back({"evaluation", seconds});
    sum += seconds;
  }
  if (times.empty()) return times;
  if (const double other = run.wall_time() - sum; other > 0) times.push_back({"other", other});
  std::ranges::stable_sort(times, std::greater<>(), &PhaseTime::seconds);
  return times;
}

std::vector<DeckDifferenceOfRuns> deck_differences(const std::vector<RunReader>& runs) {
  std::vector<DeckDifferenceOfRuns> keys;
  std::set<std::string> chosen;  // keys with another origin than the default in some run
  for (size_t r = 0; r < runs.size(); ++r) {
    for (const DeckEntry& entry : runs[r].deck()) {
      const std::string key = entry.section + "." + entry.key;
      auto found = std::ranges::find(keys, key, &DeckDifferenceOfRuns::key);
      if (found == keys.end()) {
        keys.push_back({key, std::vector<std::string>(runs.size())});
        found = keys.end() - 1;
      }
      found->values[r] = entry.value;
      if (entry.provenance != "default") chosen.insert(key);
    }
  }
  std::erase_if(keys, [&](const DeckDifferenceOfRuns& key) {
    std::set<std::string_view> values(key.values.begin(), key.values.end());
    if (!chosen.contains(key.key)) values.erase("");  // tasks have keys of their own: that is not a difference
    return values.size() < 2 || key.key == "run.name" || key.key == "run.output" || key.key == "run.overwrite";
  });
  return keys;
}

std::vector<RunReader> read_runs(const std::vector<std::filesystem::path>& folders) {
  std::vector<RunReader> runs;
  for (const std::filesystem::path& folder : folders) {
    runs.emplace_back(folder);
    runs.back().refresh();
  }
  LLMTRAIN_CHECK(!runs.empty(), "the caller names runs");
  if (std::ranges::all_of(runs, [](const RunReader& run) { return run.metrics().empty(); })) {
    const std::string& problem = runs.front().problem();
    throw UserError(
        ExitCode::missing_input,
        problem.empty() ? runs.front().folder().string() + "/metrics.jsonl: it has no metrics yet" : problem);
  }
  return runs;
}

}  // namespace llmtrain
