#include "report/comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.hpp"
#include "core/number_text.hpp"
#include "report/html_text.hpp"
#include "report/run_facts.hpp"

namespace llmtrain {
namespace {

using nlohmann::ordered_json;
using Row = std::vector<std::string>;  ///< a label, and a value for each run

constexpr size_t most_width = 40;

/// Length of UTF-8 text in characters.
size_t width_of(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<uint8_t>(c) & 0xC0U) != 0x80; }));
}

/// One line of at most `most_width` characters.
std::string shortened(std::string_view text) {
  std::string line = without_controls(clean_text(text.substr(0, 4 * most_width)));
  std::ranges::replace(line, '\n', ' ');
  std::ranges::replace(line, '\t', ' ');
  if (width_of(line) <= most_width) return line;
  size_t end = most_width - 3;
  while (end > 0 && (static_cast<uint8_t>(line[end]) & 0xC0U) == 0x80) --end;
  return line.substr(0, end) + "...";
}

std::string aligned(std::vector<Row> rows) {
  std::vector<size_t> widths;
  for (Row& row : rows) {
    for (std::string& cell : row) cell = shortened(cell);
    if (row.size() < 2) continue;  // a heading
    widths.resize(row.size());
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width_of(row[c]));
  }
  std::string text;
  for (const Row& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) {
      text += row[c];
      if (c + 1 < row.size()) text += std::string(widths[c] - width_of(row[c]) + 2, ' ');
    }
    text += '\n';
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
void add_row(std::vector<Row>& rows, const std::string& label, const std::vector<RunReader>& runs, const Text& text) {
  rows.push_back({label});
  for (const RunReader& run : runs) rows.back().push_back(text(run));
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

std::string comparison_text(const std::vector<RunReader>& runs) {
  std::vector<Row> rows;
  add_row(rows, "", runs, [](const RunReader& run) { return run.name(); });
  add_row(rows, "state", runs, state_text);
  add_row(rows, "time", runs, [](const RunReader& run) { return duration(run.wall_time()); });
  rows.push_back({""});
  const std::vector<DeckDifferenceOfRuns> keys = deck_differences(runs);
  rows.push_back({keys.empty() ? "The decks do not differ." : "Deck"});
  for (const DeckDifferenceOfRuns& key : keys) {
    rows.push_back({key.key});
    for (const std::string& value : key.values) rows.back().push_back(value.empty() ? "-" : value);
  }
  const std::set<std::string> names = metric_names(runs);
  rows.insert(rows.end(), {{""}, {"Best values"}});
  for (const std::string& name : names) {
    if (better_values(name) == Better::unknown || name == "loss") continue;  // the loss of one step says little
    add_row(rows, name, runs, [&](const RunReader& run) { return best_text(run, name); });
  }
  rows.insert(rows.end(), {{""}, {"Last values"}});
  for (const std::string& name : names) {
    if (name == "wall_time" || name.starts_with("system/") || name.starts_with("ranks/")) continue;
    add_row(rows, name, runs, [&](const RunReader& run) { return point_text(name, last_of(run, name)); });
  }
  return aligned(std::move(rows));
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
