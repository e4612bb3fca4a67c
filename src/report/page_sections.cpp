// Sections of the report that show what a run has written: curves, events, samples, deck, environment.

#include "report/page_sections.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/number_text.hpp"
#include "report/charts/metric_info.hpp"
#include "report/html_text.hpp"

namespace llmtrain {
namespace {

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
    lines.push_back(fmt::format("Step {}: node {} {}: {:.2f} x the time of the median rank for the same work.",
                                node.step, node.host, node.slow ? "is slow" : "has recovered", node.ratio));
  }
  return lines;
}

}  // namespace

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
