#include "report/page_data.hpp"

#include <fmt/format.h>

#include "report/charts/metric_info.hpp"
#include "report/html_text.hpp"

namespace llmtrain {
namespace {

constexpr size_t most_marks = 200;  // bad steps that are drawn

std::string curve_json(const MetricSeries& series, size_t buckets) {
  const MetricSeries curve = reduced_curve(series, buckets);
  std::string steps, values;
  for (size_t i = 0; i < curve.steps.size(); ++i) {
    steps += (i > 0 ? "," : "") + std::to_string(curve.steps[i]);
    values += (i > 0 ? "," : "") + json_number(curve.values[i]);
  }
  return "[[" + steps + "],[" + values + "]]";
}

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

}  // namespace

std::string page_data(const std::vector<RunReader>& runs, const std::vector<Chart>& charts) {
  std::string all_runs, all_charts;
  for (size_t i = 0; i < runs.size(); ++i) all_runs += (i > 0 ? ",\n" : "") + run_json(runs[i], charts, i);
  for (const Chart& chart : charts) all_charts += (all_charts.empty() ? "" : ",\n") + chart_json(chart);
  return "{\"runs\":[" + all_runs + "],\n\"charts\":[" + all_charts + "]}";
}

}  // namespace llmtrain
