#include "report/charts/plot_content.hpp"

#include <algorithm>
#include <cmath>

namespace llmtrain {
namespace {

constexpr size_t max_points = 40;  ///< of a curve that shows each
constexpr size_t max_marks = 100;  ///< of bad steps

std::vector<PlotMark> marks_of(const RunReader& run) {
  std::vector<PlotMark> marks;
  for (const RunEvent& event : run.events()) {
    marks.push_back({event.step, event.kind == RunEvent::Kind::resume ? "R" : "B"});
  }
  const size_t stride = 1 + run.bad_steps().size() / max_marks;
  for (size_t i = 0; i < run.bad_steps().size(); i += stride) marks.push_back({run.bad_steps()[i].step, "x"});
  return marks;
}

}  // namespace

PlotContent plot_content(const std::vector<RunReader>& runs, const Chart& chart) {
  PlotContent content{chart.title, chart.unit, chart.logarithmic, {}, {}};
  for (size_t i = 0; i < chart.lines.size(); ++i) {
    const MetricSeries& series = runs[chart.lines[i].run].metrics().at(chart.lines[i].metric);
    PlotCurve curve{reduced_curve(series, plot_buckets), chart.lines[i].label, i, series.steps.size() <= max_points};
    if (std::ranges::none_of(curve.points.values, [](double value) { return std::isfinite(value); })) continue;
    if (std::ranges::any_of(series.values, [](double value) { return value <= 0; })) content.logarithmic = false;
    content.curves.push_back(std::move(curve));
  }
  if (runs.size() == 1) content.marks = marks_of(runs.front());
  return content;
}

}  // namespace llmtrain
