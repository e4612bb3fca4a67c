// Sections of the report: what came out (summary, comparison of runs, times, numbers), and what a run has written
// (curves, events, samples, deck, environment).

#include "report/page_sections.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/number_text.hpp"
#include "report/charts/metric_info.hpp"
#include "report/html_text.hpp"
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

bool has_energy(const RunReader& run) { return run.metrics().contains("energy/joules"); }

std::string comparison_row(const RunReader& run, size_t index, const std::vector<DeckDifferenceOfRuns>& keys,
                           const std::vector<std::string>& metrics, bool energy) {
  std::string row = fmt::format("<tr data-run=\"{}\"><th scope=\"row\" data-value=\"{}\">{}</th>", index,
                                html_text(run.name()), html_text(run.name()));
  for (const DeckDifferenceOfRuns& key : keys) row += cell(key.values[index], key.values[index], false);
  for (const std::string& metric : metrics) {
    row += point_cell(metric, shows_best(metric) ? best_of(run, metric) : last_of(run, metric));
  }
  row += cell(std::to_string(run.last_step()), state_text(run), false);
  row += cell(fmt::format("{}", run.wall_time()), duration(run.wall_time()), true);
  const std::string joules = has_energy(run) ? fmt::format("{}", last_of(run, "energy/joules").value) : "";
  if (energy) row += cell(joules, energy_text(run), true);
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

constexpr size_t most_samples = 60;  // of a run, the last ones
constexpr size_t most_sample_bytes = 8000;
constexpr size_t most_events = 200;
constexpr size_t environment_lines = 60, last_lines = 30;

/// Heading of a run's part, where there are several runs.
std::string run_heading(const std::vector<RunReader>& runs, const RunReader& run) {
  return runs.size() > 1 ? fmt::format("<h3>{}</h3>\n", html_text(run.name())) : "";
}

/// Text for readers that do not see the plot.
std::string plot_description(const std::vector<RunReader>& runs, const Chart& chart) {
  constexpr size_t most = 8;
  std::string text = chart.title + " over steps.";
  for (size_t i = 0; i < std::min(chart.lines.size(), most); ++i) {
    const ChartLine& line = chart.lines[i];
    const MetricSeries& series = runs[line.run].metrics().at(line.metric);
    text += fmt::format(
        " {}: last {}, lowest {}, highest {}.", line.label, metric_text(line.metric, last_point(series).value),
        metric_text(line.metric, lowest_point(series).value), metric_text(line.metric, highest_point(series).value));
  }
  if (chart.lines.size() > most) text += fmt::format(" And {} more.", chart.lines.size() - most);
  return text;
}

std::string chart_figure(const std::vector<RunReader>& runs, const Chart& chart, size_t index) {
  const std::string unit = chart.unit == "%" ? ", %" : "";  // values show the others
  const std::string note =
      chart.left_out > 0 ? fmt::format("<p class=\"note\">{} more lines are not shown.</p>", chart.left_out) : "";
  return fmt::format(
      "<figure data-chart=\"{}\"><figcaption>{}{}<button type=\"button\" aria-pressed=\"false\" "
      "aria-label=\"logarithmic "
      "axis of {}\">log</button></figcaption>\n<div class=\"plot\" role=\"img\" aria-label=\"{}\"></div>\n<ul "
      "class=\"legend\" aria-label=\"Curves of {}\"></ul>{}</figure>\n",
      index, html_text(chart.title), unit, html_text(chart.title), html_text(plot_description(runs, chart)),
      html_text(chart.title), note);
}

/// Explanation of the marks that the plots have.
std::string marks_note(const std::vector<RunReader>& runs) {
  std::string marks;
  const auto add = [&](bool present, std::string_view text) {
    if (present) marks += fmt::format("{}{}", marks.empty() ? "" : ", ", text);
  };
  const auto any_event = [&](RunEvent::Kind kind) {
    return std::ranges::any_of(
        runs, [&](const RunReader& run) { return std::ranges::count(run.events(), kind, &RunEvent::kind) > 0; });
  };
  add(any_event(RunEvent::Kind::resume), "R the run was resumed");
  add(any_event(RunEvent::Kind::rollback), "B it was rolled back to this step");
  add(std::ranges::any_of(runs, [](const RunReader& run) { return !run.bad_steps().empty(); }),
      "&times; bad step, whose update was skipped");
  add(std::ranges::any_of(runs, [](const RunReader& run) { return !run.best_steps().empty(); }),
      "&#9733; best evaluation");
  return marks.empty() ? "" : "Marks: " + marks + ". ";
}

std::string sample_article(const RunSample& sample) {
  const std::string cut = sample.text.size() > most_sample_bytes ? " ..." : "";
  const std::string prompt =
      sample.prompt.empty() ? "" : fmt::format("<p class=\"prompt\">{}</p>\n", html_text(sample.prompt));
  return fmt::format("{}<pre>{}{}</pre>\n", prompt, html_text(sample.text.substr(0, most_sample_bytes)), cut);
}

std::string deck_rows(const RunReader& run, bool given_only) {
  std::string rows, section;
  for (const DeckEntry& entry : run.deck()) {
    const bool given = entry.provenance.starts_with("deck") || entry.provenance.starts_with("command line");
    if (given_only && !given) continue;
    if (entry.section != section) {
      section = entry.section;
      rows += fmt::format("<tr><th scope=\"colgroup\" colspan=\"3\">[{}]</th></tr>\n", html_text(section));
    }
    rows +=
        fmt::format("<tr{}><td>{}</td><td>{}</td><td>{}</td></tr>\n", given && !given_only ? " class=\"given\"" : "",
                    html_text(entry.key), html_text(entry.value), html_text(entry.provenance));
  }
  return rows;
}

/// `label`: for screen readers, which list the tables of a page by it.
std::string deck_table(const std::string& label, const std::string& rows) {
  return "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"" + html_text(label) +
         "\"><table "
         "class=\"deck\"><thead><tr><th scope=\"col\">key</th><th scope=\"col\">value</th><th "
         "scope=\"col\">origin</th></tr>"
         "</thead>\n<tbody>\n" +
         rows + "</tbody></table></div>\n";
}

std::vector<std::string> event_lines(const RunReader& run) {
  std::vector<std::string> lines;
  for (const RunEvent& event : run.events()) {
    const std::string at = fmt::format("after {} of training", duration(event.wall_time));
    lines.push_back(
        event.kind == RunEvent::Kind::resume
            ? fmt::format("Step {}: resumed with {}, {}.", event.step, event.text, at)
            : fmt::format("Step {}: rolled back from step {}, {}: {}.", event.step, event.from, at, event.text));
  }
  for (const BadStep& bad : run.bad_steps()) {
    lines.push_back(fmt::format("Step {}: bad step, update skipped (loss {}, gradient norm {}).", bad.step,
                                metric_text("loss", bad.loss), metric_text("grad_norm", bad.grad_norm)));
  }
  for (const NodeEvent& node : run.node_events()) {
    if (!node.replay.empty()) {
      lines.push_back(
          fmt::format("Step {}: node {} {}: a replay found other gradients.", node.step, node.host, node.replay));
      continue;
    }
    lines.push_back(fmt::format("Step {}: node {} {}: {:.2f} x the time of the median rank for the same work.",
                                node.step, node.host, node.slow ? "is slow" : "has recovered", node.ratio));
  }
  return lines;
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
  if (has_energy(run)) facts += fact("Energy", energy_text(run));
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
  const bool energy = std::ranges::any_of(runs, has_energy);
  if (energy) head += sort_head("energy", "", true);
  std::string rows;
  for (size_t i = 0; i < runs.size(); ++i) rows += comparison_row(runs[i], i, keys, metrics, energy);
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

std::string charts_section(const std::vector<RunReader>& runs, const std::vector<Chart>& charts) {
  std::string section = fmt::format(
      "<div class=\"tools\"><span>Horizontal axis: <button type=\"button\" data-axis=\"step\" "
      "aria-pressed=\"true\">steps"
      "</button><button type=\"button\" data-axis=\"time\" aria-pressed=\"false\">time of "
      "training</button></span></div>\n"
      "<p class=\"note\">{}Drag over a plot to enlarge a part, double-click to see all; a button under a plot hides "
      "its "
      "curve.</p>\n<noscript><p class=\"warning\">The plots need JavaScript, which is in this file; the numbers below "
      "do "
      "not.</p></noscript>\n<svg width=\"0\" height=\"0\" aria-hidden=\"true\"></svg>\n",
      marks_note(runs));
  std::string heading;
  for (size_t i = 0; i < charts.size(); ++i) {
    if (charts[i].section != heading) {
      if (!heading.empty()) section += "</div>\n";
      heading = charts[i].section;
      section += fmt::format("<h3>{}</h3>\n<div class=\"charts\">\n", html_text(heading));
    }
    section += chart_figure(runs, charts[i], i);
  }
  return charts.empty() ? "" : section + "</div>\n";
}

std::string events_section(const std::vector<RunReader>& runs) {
  std::string section;
  for (const RunReader& run : runs) {
    const std::vector<std::string> lines = event_lines(run);
    if (lines.empty()) continue;
    section += run_heading(runs, run) + "<ul>\n";
    for (size_t i = 0; i < std::min(lines.size(), most_events); ++i)
      section += "<li>" + html_text(lines[i]) + "</li>\n";
    if (lines.size() > most_events) section += fmt::format("<li>And {} more.</li>\n", lines.size() - most_events);
    section += "</ul>\n";
  }
  return section;
}

std::string samples_section(const std::vector<RunReader>& runs) {
  std::string section;
  for (const RunReader& run : runs) {
    const std::vector<RunSample>& samples = run.samples();
    if (samples.empty()) continue;
    const size_t first = samples.size() - std::min(samples.size(), most_samples);
    std::map<int64_t, std::string, std::greater<>> by_step;
    for (size_t i = first; i < samples.size(); ++i) by_step[samples[i].step] += sample_article(samples[i]);
    section += run_heading(runs, run);
    for (const auto& [step, articles] : by_step) {
      section += fmt::format("<details{}><summary>Step {}</summary>\n{}</details>\n",
                             step == by_step.begin()->first ? " open" : "", step, articles);
    }
    if (first > 0) section += fmt::format("<p class=\"note\">{} earlier samples are not shown.</p>\n", first);
  }
  return section;
}

std::string deck_section(const std::vector<RunReader>& runs) {
  std::string section;
  for (const RunReader& run : runs) {
    if (run.deck().empty()) continue;
    const std::string given = deck_rows(run, true);
    section += run_heading(runs, run);
    if (!given.empty()) {
      section += fmt::format("<details{}><summary>Given by the deck and the command line</summary>\n{}</details>\n",
                             runs.size() == 1 ? " open" : "", deck_table("Given keys of " + run.name(), given));
    }
    section += fmt::format(
        "<details class=\"long\"><summary>All keys, with the origin of each value</summary>\n{}</details>\n",
        deck_table("All keys of " + run.name(), deck_rows(run, false)));
  }
  return section;
}

std::string environment_section(const std::vector<RunReader>& runs) {
  std::string section;
  for (const RunReader& run : runs) {
    std::string lines;
    for (const std::string& line : run.log_head(environment_lines)) {
      if (line.starts_with("step ")) break;
      lines += line + "\n";
    }
    if (lines.empty()) continue;
    std::string last;
    for (const std::string& line : run.log_tail(last_lines)) last += line + "\n";
    section += fmt::format(
        "{}<pre>{}</pre>\n<details class=\"long\"><summary>Last lines of log.txt</summary>\n<pre>{}</pre></details>\n",
        run_heading(runs, run), html_text(lines), html_text(last));
  }
  return section;
}

}  // namespace llmtrain
