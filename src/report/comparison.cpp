#include "report/comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.hpp"
#include "core/number_text.hpp"
#include "core/terminal.hpp"
#include "report/html_text.hpp"
#include "report/run_facts.hpp"
#include "report/text_table.hpp"

namespace llmtrain {
namespace {

using nlohmann::ordered_json;
using Row = TextRow;

constexpr size_t max_run_columns = 6;

/// A heading, and rows of a label and a cell for each run.
struct Part {
  std::string heading;
  std::vector<Row> rows;
};

/// A column for each run.
std::string text_in_columns(const std::vector<Part>& parts, size_t width) {
  std::vector<Row> rows;
  for (const Part& part : parts) {
    if (&part != parts.data()) rows.insert(rows.end(), {{""}, {part.heading}});
    rows.insert(rows.end(), part.rows.begin(), part.rows.end());
  }
  return aligned_text(std::move(rows), width);
}

/// A line for each run, in a table for each part.
std::string text_in_lines(const std::vector<Part>& parts, size_t width) {
  const Row& names = parts.front().rows.front();
  std::string text;
  for (const Part& part : parts) {
    if (&part != parts.data()) text += "\n" + part.heading + "\n";
    std::vector<Row> rows(names.size());
    for (size_t r = 0; r < names.size(); ++r) rows[r].push_back(names[r]);
    for (const Row& row : part.rows) {
      if (&row == &names) continue;
      for (size_t r = 0; r < names.size(); ++r) rows[r].push_back(row[r]);
    }
    text += aligned_text(std::move(rows), width);
  }
  return text;
}

std::set<std::string> metric_names(const std::vector<RunReader>& runs) {
  std::set<std::string> names;
  for (const RunReader& run : runs) {
    for (const auto& [name, series] : run.metrics()) names.insert(name);
  }
  return names;
}

template <class Text>
void add_row(Part& part, const std::string& label, const std::vector<RunReader>& runs, const Text& text) {
  part.rows.push_back({label});
  for (const RunReader& run : runs) part.rows.back().push_back(text(run));
}

std::string best_text(const RunReader& run, const std::string& metric) {
  const MetricPoint best = best_of(run, metric);
  if (std::isnan(best.value)) return "-";
  return fmt::format("{} (step {})", point_text(metric, best), best.step);
}

ordered_json number_or_null(double value) { return std::isfinite(value) ? ordered_json(value) : ordered_json(); }

ordered_json metric_json(const std::vector<RunReader>& runs, const std::string& metric) {
  ordered_json json = ordered_json::object();
  for (const char* key : {"last", "last_step", "best", "best_step"}) json[key] = ordered_json::array();
  for (const RunReader& run : runs) {
    const MetricPoint last = last_of(run, metric), best = best_of(run, metric);
    json["last"].push_back(number_or_null(last.value));
    json["last_step"].push_back(run.metrics().contains(metric) ? ordered_json(last.step) : ordered_json());
    json["best"].push_back(number_or_null(best.value));
    json["best_step"].push_back(std::isnan(best.value) ? ordered_json() : ordered_json(best.step));
  }
  return json;
}

}  // namespace

std::string comparison_text(const std::vector<RunReader>& runs, size_t width) {
  const std::vector<DeckDifferenceOfRuns> keys = deck_differences(runs);
  std::vector<Part> parts = {
      {"", {}}, {keys.empty() ? "The decks do not differ." : "Deck", {}}, {"Best values", {}}, {"Last values", {}}};
  add_row(parts[0], "", runs, [](const RunReader& run) { return run.name(); });
  add_row(parts[0], "state", runs, state_text);
  add_row(parts[0], "time", runs, [](const RunReader& run) { return duration(run.wall_time()); });
  const std::set<std::string> names = metric_names(runs);
  if (names.contains("energy/joules")) add_row(parts[0], "energy", runs, energy_text);
  for (const DeckDifferenceOfRuns& key : keys) {
    Row& row = parts[1].rows.emplace_back(Row{key.key});
    for (const std::string& value : key.values) row.push_back(value.empty() ? "-" : value);
  }
  for (const std::string& name : names) {
    if (better_values(name) != Better::unknown && name != "loss") {  // the loss of one step says little
      add_row(parts[2], name, runs, [&](const RunReader& run) { return best_text(run, name); });
    }
    if (name == "wall_time" || name.starts_with("system/") || name.starts_with("ranks/") ||
        name.starts_with("traffic/") || name.starts_with("replay/") || name.starts_with("energy/")) {
      continue;
    }
    add_row(parts[3], name, runs, [&](const RunReader& run) { return point_text(name, last_of(run, name)); });
  }
  return runs.size() > max_run_columns ? text_in_lines(parts, width) : text_in_columns(parts, width);
}

std::string comparison_json(const std::vector<RunReader>& runs) {
  ordered_json json = ordered_json::object();
  json["runs"] = ordered_json::array();
  for (const RunReader& run : runs) {
    json["runs"].push_back(ordered_json::object({{"name", run.name()},
                                                 {"folder", run.folder().string()},
                                                 {"state", state_text(run)},
                                                 {"finished", run.finished()},
                                                 {"steps", run.last_step()},
                                                 {"max_steps", run.max_steps()},
                                                 {"wall_time", run.wall_time()},
                                                 {"problem", run.problem()}}));
  }
  json["differences"] = ordered_json::object();
  for (const DeckDifferenceOfRuns& key : deck_differences(runs)) {
    for (const std::string& value : key.values) {
      json["differences"][key.key].push_back(value.empty() ? ordered_json() : ordered_json(value));
    }
  }
  json["metrics"] = ordered_json::object();
  for (const std::string& name : metric_names(runs)) json["metrics"][name] = metric_json(runs, name);
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace llmtrain
