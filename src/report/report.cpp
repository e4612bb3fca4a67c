#include "report/report.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <string>

#include "core/error.hpp"
#include "core/files/whole_file.hpp"
#include "report/assets.hpp"
#include "report/charts/chart_plan.hpp"
#include "report/charts/metric_info.hpp"
#include "report/dashboard/request_guard.hpp"
#include "report/html_text.hpp"
#include "report/page_sections.hpp"
#include "report/run_facts.hpp"

namespace llmtrain {

namespace {

constexpr size_t most_marks = 200;  // bad steps that are drawn

std::string mark_json(std::string_view kind, int64_t step, const std::string& text) {
  return fmt::format(R"({{"kind":"{}","step":{},"text":{}}})", kind, step, json_string(text));
}

std::string marks_json(const RunReader& run) {
  std::string marks;
  const auto add = [&](const std::string& mark) { marks += (marks.empty() ? "" : ",") + mark; };
  for (const RunEvent& event : run.events()) {
    const bool resume = event.kind == RunEvent::Kind::resume;
    add(mark_json(resume ? "resume" : "rollback", event.step,
                  resume ? "resumed, " + event.text : fmt::format("rolled back from {}: {}", event.from, event.text)));
  }
  const std::vector<BadStep>& bad = run.bad_steps();
  const size_t stride = 1 + bad.size() / most_marks;
  for (size_t i = 0; i < bad.size(); i += stride) {
    add(mark_json("bad", bad[i].step,
                  fmt::format("bad step: loss {}, gradient norm {}", metric_text("loss", bad[i].loss),
                              metric_text("grad_norm", bad[i].grad_norm))));
  }
  if (!run.best_steps().empty()) add(mark_json("best", run.best_steps().back(), "best evaluation"));
  return marks;
}

std::string run_json(const RunReader& run, const std::vector<Chart>& charts, size_t index) {
  const size_t buckets = buckets_of_plots(charts);
  std::string curves;
  for (const Chart& chart : charts) {
    for (const ChartLine& line : chart.lines) {
      if (line.run != index) continue;
      const std::string curve = curve_json(run.metrics().at(line.metric), buckets);
      curves += fmt::format("{}{}:{}", curves.empty() ? "" : ",", json_string(line.metric), curve);
    }
  }
  const auto time = run.metrics().find("wall_time");
  return fmt::format(R"({{"name":{},"time":{},"marks":[{}],"curves":{{{}}}}})", json_string(run.name()),
                     time == run.metrics().end() ? "[[],[]]" : curve_json(time->second, buckets), marks_json(run),
                     curves);
}

std::string chart_json(const Chart& chart) {
  std::string lines;
  for (const ChartLine& line : chart.lines) {
    lines += fmt::format("{}[{},{},{}]", lines.empty() ? "" : ",", line.run, json_string(line.metric),
                         json_string(line.label));
  }
  return fmt::format(R"({{"title":{},"unit":"{}","logarithmic":{},"lines":[{}]}})", json_string(chart.title),
                     chart.unit, chart.logarithmic, lines);
}

/// {"runs": [{"name", "time": [steps, seconds], "marks": [{"kind", "step", "text"}], "curves": {metric: [steps,
/// values]}}], "charts": [{"title", "unit", "logarithmic", "lines": [[run, metric, label]]}]}
std::string page_data(const std::vector<RunReader>& runs, const std::vector<Chart>& charts) {
  std::string all_runs, all_charts;
  for (size_t i = 0; i < runs.size(); ++i) all_runs += (i > 0 ? ",\n" : "") + run_json(runs[i], charts, i);
  for (const Chart& chart : charts) all_charts += (all_charts.empty() ? "" : ",\n") + chart_json(chart);
  return "{\"runs\":[" + all_runs + "],\n\"charts\":[" + all_charts + "]}";
}

namespace fs = std::filesystem;

struct Section {
  const char* id;
  const char* title;
  std::string content;
};

std::string title_of(const std::vector<RunReader>& runs) {
  return runs.size() == 1 ? runs.front().name() : fmt::format("{} runs", runs.size());
}

/// Names the files that could not be read as they should.
std::string warnings(const std::vector<RunReader>& runs) {
  std::string text;
  for (const RunReader& run : runs) {
    if (!run.problem().empty()) text += "<p class=\"warning\">Warning: " + html_text(run.problem()) + "</p>\n";
  }
  return text;
}

std::string head(const std::vector<RunReader>& runs, const std::string& key) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'nonce-{0}'; style-src "
      "'nonce-{0}'; base-uri 'none'; form-action 'none'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"referrer\" content=\"no-referrer\">\n"
      "<title>{1}: llmtrain report</title>\n<style nonce=\"{0}\">\n{2}\n{3}</style>\n</head>\n",
      key, html_text(title_of(runs)), asset("uplot.css"), asset("report.css"));
}

std::string body(const std::vector<RunReader>& runs, const std::vector<Section>& sections) {
  const std::string task = runs.front().deck_value("run", "task");
  std::string names;
  for (const RunReader& run : runs) names += (names.empty() ? "" : ", ") + run.name();
  std::string text = fmt::format("<body>\n<header><h1>{}</h1>\n<p>{}{}</p>\n<nav aria-label=\"Sections\"><ul>",
                                 html_text(title_of(runs)), task.empty() ? "" : html_text(task) + " &middot; ",
                                 html_text(runs.size() > 1 ? names : runs.front().folder().string()));
  for (const Section& section : sections) {
    text += fmt::format("<li><a href=\"#{}\">{}</a></li>", section.id, section.title);
  }
  text += "</ul></nav></header>\n<main>\n" + warnings(runs);
  for (const Section& section : sections) {
    text += fmt::format(
        "<section id=\"{0}\" aria-labelledby=\"title-{0}\">\n<h2 id=\"title-{0}\">{1}</h2>\n{2}</section>\n",
        section.id, section.title, section.content);
  }
  return text + fmt::format(
                    "</main>\n<footer><p>Written by llmtrain {} at {:%Y-%m-%d %H:%M} UTC.</p>\n<details><summary>"
                    "The plots are drawn by uPlot, whose licence is this</summary>\n<pre>{}</pre></details></footer>\n",
                    LLMTRAIN_VERSION, fmt::gmtime(std::time(nullptr)), html_text(asset("uplot.licence")));
}

std::string page(const std::vector<RunReader>& runs) {
  const std::vector<Chart> charts = plan_charts(runs);
  const bool one = runs.size() == 1;
  std::vector<Section> sections;
  const auto add = [&](const char* id, const char* title, std::string content) {
    if (!content.empty()) sections.push_back({id, title, std::move(content)});
  };
  add("summary", one ? "Summary" : "Comparison", one ? summary_section(runs.front()) : comparison_section(runs));
  add("curves", "Curves", charts_section(runs, charts));
  add("time", "Time by phase", time_section(runs));
  add("events", "Events", events_section(runs));
  add("samples", "Samples", samples_section(runs));
  add("labels", "Labels", labels_section(runs));
  add("numbers", "Numbers", numbers_section(runs));
  add("deck", "Deck", deck_section(runs));
  add("environment", "Environment", environment_section(runs));
  const std::string key = random_token();  // without it the page runs no script
  return head(runs, key) + body(runs, sections) +
         fmt::format(
             "<script type=\"application/json\" id=\"data\" nonce=\"{0}\">{1}</script>\n<script nonce=\"{0}\">\n{2}\n"
             "</script>\n<script nonce=\"{0}\">\n{3}</script>\n</body>\n</html>\n",
             key, page_data(runs, charts), asset("uplot.js"), asset("report.js"));
}

}  // namespace

void write_report(const std::vector<fs::path>& runs, const fs::path& output) {
  const std::string text = page(read_runs(runs));
  std::error_code error;
  fs::create_directories(output.has_parent_path() ? output.parent_path() : ".", error);
  if (error) fail_to_create(output.parent_path().string(), "the folder cannot be created", error.value());
  write_whole_file(output.string(), text);
}

}  // namespace llmtrain
