#pragma once
// Plots of runs as picture files; gnuplot draws PNG.

#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "report/charts/chart_plan.hpp"

namespace llmtrain {

inline constexpr std::array<const char*, 8> plot_colours = {"#0a5fb4", "#b3420a", "#0b7350", "#8b3a8b",
                                                            "#86620a", "#b4234f", "#2f7189", "#5b5b5b"};
inline constexpr const char* mark_colour = "#7a3e00";

struct PlotCurve {
  MetricSeries points;  ///< reduced; a value that is not finite is a gap
  std::string label;
  size_t style = 0;         ///< number of its colour and dashes
  bool has_points = false;  ///< there are so few that each is shown
};

/// A vertical line: R resume, B rollback, x bad step.
struct PlotMark {
  int64_t step;
  const char* sign;
};

struct PlotContent {
  std::string title, unit;  ///< unit as metric_unit
  bool logarithmic = false;
  std::vector<PlotCurve> curves;  ///< those with finite values
  std::vector<PlotMark> marks;    ///< of a single run
};

PlotContent plot_content(const std::vector<RunReader>& runs, const Chart& chart);

/// The picture as a file of SVG, which needs no other program.
std::string svg_plot(const PlotContent& content);

/// Writes the report's plots to the folder, one file NAME.`format` each, and returns the files. `format`: "png" or
/// "svg". Throws UserError: no_device (69) for a PNG if gnuplot is not installed, missing_input, cannot_create, io.
std::vector<std::filesystem::path> write_plots(const std::vector<std::filesystem::path>& runs,
                                               const std::filesystem::path& folder, const std::string& format);

}  // namespace llmtrain
