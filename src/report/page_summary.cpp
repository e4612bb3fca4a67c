// Sections of the report that say what came out: summary, comparison of runs, times, numbers.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/number_text.hpp"
#include "report/html_text.hpp"
#include "report/page_sections.hpp"
#include "report/run_facts.hpp"

namespace llmtrain {
namespace {

std::string fact(std::string_view name, std::string_view value, std::string_view note = {}) {
  const std::string small = note.empty() ? "" : fmt::format("<small>{}</small>", html_text(note));
  return fmt::format("<div><dt>{}</dt><dd>{}{}</dd></div>\n", html_text(name), html_text(value), small);
}

/// The last value of a metric, and in small letters the best.
std::string metric_fact(const RunReader& run, std::string_view name, const std::string& metric) {
  const MetricPoint last = last_of(run, metric), best = best_of(run, metric);
  if (std::isnan(last.value) && std::isnan(best.value)) return {};
  const std::string note =
      std::isnan(best.value) ? std::string() : fmt::format("best {} at step {}", point_text(metric, best), best.step);
  return fact(name, point_text(metric, last), note);
}

std::string count_fact(std::string_view name, size_t count) {
  return count == 0 ? std::string() : fact(name, std::to_string(count));
}

size_t count_events(const RunReader& run, RunEvent::Kind kind) {
  return static_cast<size_t>(std::ranges::count(run.events(), kind, &RunEvent::kind));
}

/// A cell of a sortable table: `value` is what sorting compares.
std::string cell(std::string_view value, std::string_view shown, bool number) {
  return fmt::format("<td{} data-value=\"{}\">{}</td>", number ? " class=\"number\"" : "", html_text(value),
                     html_text(shown));
}

std::string point_cell(const std::string& metric, const MetricPoint& point) {
  return cell(std::isfinite(point.value) ? fmt::format("{}", point.value) : "", point_text(metric, point), true);
}

/// Heading of a sortable table. `kind`: "hyperparameter" or "result" for the axes of parallel coordinates, or "".
std::string sort_head(std::string_view name, std::string_view kind, bool number) {
  const std::string data = kind.empty() ? "" : fmt::format(" data-kind=\"{}\"", kind);
  return fmt::format("<th scope=\"col\"{}{}><button type=\"button\">{}</button></th>",
                     number ? " class=\"number\"" : "", data, html_text(name));
}

/// Results in tables of runs are those at the end, but for what evaluations have: the best.
bool shows_best(const std::string& metric) {
  return metric.starts_with("validation_") && better_values(metric) != Better::unknown;
}

std::string comparison_row(const RunReader& run, size_t index, const std::vector<DeckDifferenceOfRuns>& keys,
                           const std::vector<std::string>& metrics) {
  std::string row = fmt::format("<tr data-run=\"{}\"><th scope=\"row\" data-value=\"{}\">{}</th>", index,
                                html_text(run.name()), html_text(run.name()));
  for (const DeckDifferenceOfRuns& key : keys) row += cell(key.values[index], key.values[index], false);
  for (const std::string& metric : metrics) {
    row += point_cell(metric, shows_best(metric) ? best_of(run, metric) : last_of(run, metric));
  }
  row += cell(std::to_string(run.last_step()), state_text(run), false);
  row += cell(fmt::format("{}", run.wall_time()), duration(run.wall_time()), true);
  return row + "</tr>\n";
}

std::string phase_svg(const std::vector<PhaseTime>& times, double sum) {
  std::string svg = "<svg class=\"phases\" viewBox=\"0 0 1000 26\" preserveAspectRatio=\"none\" aria-hidden=\"true\">";
  double x = 0;
  for (size_t i = 0; i < times.size(); ++i) {
    const double width = 1000 * times[i].seconds / sum;
    svg +=
        fmt::format("<rect class=\"phase{}\" x=\"{:.2f}\" y=\"0\" width=\"{:.2f}\" height=\"26\"/>", i % 8, x, width);
    x += width;
  }
  return svg + "</svg>\n";
}

}  // namespace

std::vector<std::string> result_metrics(std::span<const RunReader> runs) {
  constexpr size_t most = 12;
  std::set<std::string> names;
  for (const RunReader& run : runs) {
    for (const auto& [name, series] : run.metrics()) {
      const bool speed = name == "tokens_per_second" || name == "loss";
      if (!speed && better_values(name) != Better::unknown) names.insert(name);
    }
  }
  std::vector<std::string> chosen;
  for (const char* first : {"validation_loss", "loss_mean"}) {
    if (names.erase(first) > 0) chosen.emplace_back(first);
  }
  chosen.insert(chosen.end(), names.begin(), names.end());
  if (chosen.size() > most) chosen.resize(most);
  return chosen;
}

std::string summary_section(const RunReader& run) {
  std::string facts = fact("State", state_text(run));
  const std::string steps = std::to_string(run.last_step());
  facts += fact("Steps", run.max_steps() > 0 ? fmt::format("{} of {}", steps, run.max_steps()) : steps);
  facts += fact("Time of training", duration(run.wall_time()));
  facts += metric_fact(run, "Training loss", run.metrics().contains("loss_mean") ? "loss_mean" : "loss");
  facts += metric_fact(run, "Validation loss", "validation_loss");
  for (const std::string& metric : result_metrics(std::span(&run, 1))) {
    const bool shown = metric.ends_with("loss") || metric.ends_with("loss_mean");
    if (!shown) facts += metric_fact(run, metric, metric);
  }
  if (const MetricPoint speed = last_of(run, "tokens_per_second"); !std::isnan(speed.value)) {
    facts += fact("Speed", point_text("tokens_per_second", speed));
  }
  if (const auto memory = run.metrics().find("memory"); memory != run.metrics().end()) {
    facts += fact("Largest memory of rank 0", point_text("memory", highest_point(memory->second)));
  }
  facts += count_fact("Resumes", count_events(run, RunEvent::Kind::resume));
  facts += count_fact("Rollbacks", count_events(run, RunEvent::Kind::rollback));
  facts += count_fact("Bad steps", run.bad_steps().size());
  return "<dl class=\"facts\">\n" + facts + "</dl>\n";
}

std::string comparison_section(const std::vector<RunReader>& runs) {
  const std::vector<DeckDifferenceOfRuns> keys = deck_differences(runs);
  const std::vector<std::string> metrics = result_metrics(runs);
  std::string head = sort_head("run", "", false);
  for (const DeckDifferenceOfRuns& key : keys) head += sort_head(key.key, "hyperparameter", false);
  for (const std::string& metric : metrics) {
    head += sort_head(shows_best(metric) ? "best " + metric : metric, "result", true);
  }
  head += sort_head("state", "", false) + sort_head("time", "", true);
  std::string rows;
  for (size_t i = 0; i < runs.size(); ++i) rows += comparison_row(runs[i], i, keys, metrics);
  std::string section = fmt::format(
      "<p class=\"note\">Keys in which the decks of the {} runs differ, and results: of evaluations the best, of "
      "training the last. The buttons sort.</p>\n<div class=\"scroll\" tabindex=\"0\" role=\"region\" "
      "aria-label=\"Table of the runs\">\n<table class=\"sortable "
      "runs\">\n<thead><tr>{}</tr></thead>\n<tbody>\n{}</tbody></table>\n</div>\n",
      runs.size(), head, rows);
  if (keys.empty()) return section + "<p>The decks of the runs do not differ.</p>\n";
  return section +
         "<h3>Parallel coordinates</h3>\n<p class=\"note\">A line for each run, in the colour and dashes of its "
         "curves, "
         "over the columns of the table.</p>\n<div class=\"scroll\" tabindex=\"0\" role=\"region\" "
         "aria-label=\"Parallel "
         "coordinates; the table above has the same values\"><svg class=\"parallel\" "
         "aria-hidden=\"true\"></svg></div>\n";
}

std::string time_section(const std::vector<RunReader>& runs) {
  std::string section;
  for (const RunReader& run : runs) {
    const std::vector<PhaseTime> times = phase_times(run);
    double sum = 0;
    for (const PhaseTime& time : times) sum += time.seconds;
    if (sum <= 0) continue;
    if (runs.size() > 1) section += fmt::format("<h3>{}</h3>\n", html_text(run.name()));
    section +=
        phase_svg(times, sum) +
        "<table><thead><tr><th scope=\"col\">phase</th><th scope=\"col\" class=\"number\">time</th><th scope=\"col\" "
        "class=\"number\">share</th></tr></thead>\n<tbody>\n";
    for (size_t i = 0; i < times.size(); ++i) {
      section += fmt::format(
          "<tr><td><svg class=\"swatch\" viewBox=\"0 0 26 10\" aria-hidden=\"true\"><rect class=\"phase{}\" "
          "width=\"26\" "
          "height=\"10\"/></svg> {}</td><td class=\"number\">{}</td><td class=\"number\">{:.1f} %</td></tr>\n",
          i % 8, html_text(times[i].name), html_text(duration(times[i].seconds)), 100 * times[i].seconds / sum);
    }
    section += "</tbody></table>\n";
  }
  return section;
}

std::string numbers_section(const std::vector<RunReader>& runs) {
  std::string section;
  for (const RunReader& run : runs) {
    std::string rows;
    for (const auto& [name, series] : run.metrics()) {
      const MetricPoint low = lowest_point(series), high = highest_point(series);
      const auto extreme = [&, &metric = name](const MetricPoint& point) {
        return fmt::format("<td class=\"number\">{}</td><td class=\"number\">{}</td>",
                           html_text(point_text(metric, point)), point.step);
      };
      rows += fmt::format(
          "<tr><td class=\"name\">{}</td><td class=\"number\">{}</td>{}{}<td class=\"number\">{}</td></tr>\n",
          html_text(name), html_text(point_text(name, last_point(series))), extreme(low), extreme(high),
          series.steps.size());
    }
    section += fmt::format(
        "<details{}><summary>{}: {} metrics</summary>\n<div class=\"scroll\" tabindex=\"0\" role=\"region\" "
        "aria-label=\"Metrics of {}\"><table>\n<thead><tr><th scope=\"col\">metric</th><th scope=\"col\" "
        "class=\"number\">last</th><th scope=\"col\" class=\"number\">lowest</th><th scope=\"col\" class=\"number\">at "
        "step</th><th scope=\"col\" class=\"number\">highest</th><th scope=\"col\" class=\"number\">at step</th><th "
        "scope=\"col\" class=\"number\">values</th></tr></thead>\n<tbody>\n{}</tbody></table></div></details>\n",
        runs.size() == 1 ? " open" : "", html_text(run.name()), run.metrics().size(), html_text(run.name()), rows);
  }
  return section;
}

}  // namespace llmtrain
