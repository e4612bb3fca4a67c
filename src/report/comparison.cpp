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

namespace llmtrain {
namespace {

using nlohmann::ordered_json;
using Row = std::vector<std::string>;  ///< a label and cells, or a heading alone

constexpr size_t max_cell_width = 40;
constexpr size_t max_run_columns = 6;

/// A heading, and rows of a label and a cell for each run.
struct Part {
  std::string heading;
  std::vector<Row> rows;
};

/// Length of UTF-8 text in characters.
size_t width_of(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<uint8_t>(c) & 0xC0U) != 0x80; }));
}

/// One line of at most `max_cell_width` characters.
std::string one_line(std::string_view text) {
  std::string line = without_controls(clean_text(text.substr(0, 4 * max_cell_width)));
  std::ranges::replace(line, '\n', ' ');
  std::ranges::replace(line, '\t', ' ');
  return width_of(line) <= max_cell_width ? line : std::string(fit(line, max_cell_width - 3)) + "...";
}

/// Returns the end of the columns from `begin` on that fit beside the first column; at least one does.
size_t end_of_block(const std::vector<size_t>& widths, size_t begin, size_t width) {
  size_t end = begin + 1;
  for (size_t used = widths[0] + 2 + widths[begin]; end < widths.size(); ++end) {
    used += 2 + widths[end];
    if (used > width) break;
  }
  return end;
}

/// Aligns the columns. Those that do not fit come below, beside the first column again.
std::string aligned(std::vector<Row> rows, size_t width) {
  std::vector<size_t> widths;
  for (Row& row : rows) {
    for (std::string& cell : row) cell = one_line(cell);
    if (row.size() < 2) continue;  // a heading
    widths.resize(row.size());
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width_of(row[c]));
  }
  std::string text;
  for (size_t begin = 1, end = 0; begin < widths.size(); begin = end) {
    end = end_of_block(widths, begin, width);
    if (begin > 1) text += '\n';
    for (const Row& row : rows) {
      text += row.front();
      size_t padding = row.size() < 2 ? 0 : widths[0] - width_of(row.front());
      for (size_t c = begin; c < std::min(end, row.size()); ++c) {
        text += std::string(padding + 2, ' ') + row[c];
        padding = widths[c] - width_of(row[c]);
      }
      text += '\n';
    }
  }
  return text;
}

/// A column for each run.
std::string text_in_columns(const std::vector<Part>& parts, size_t width) {
  std::vector<Row> rows;
  for (const Part& part : parts) {
    if (&part != parts.data()) rows.insert(rows.end(), {{""}, {part.heading}});
    rows.insert(rows.end(), part.rows.begin(), part.rows.end());
  }
  return aligned(std::move(rows), width);
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
    text += aligned(std::move(rows), width);
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
  for (const DeckDifferenceOfRuns& key : keys) {
    Row& row = parts[1].rows.emplace_back(Row{key.key});
    for (const std::string& value : key.values) row.push_back(value.empty() ? "-" : value);
  }
  for (const std::string& name : metric_names(runs)) {
    if (better_values(name) != Better::unknown && name != "loss") {  // the loss of one step says little
      add_row(parts[2], name, runs, [&](const RunReader& run) { return best_text(run, name); });
    }
    if (name == "wall_time" || name.starts_with("system/") || name.starts_with("ranks/") ||
        name.starts_with("traffic/")) {
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
