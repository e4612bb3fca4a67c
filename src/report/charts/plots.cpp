#include "report/charts/plots.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>

#include "core/error.hpp"
#include "core/files/whole_file.hpp"
#include "core/number_text.hpp"
#include "report/html_text.hpp"
#include "report/run_facts.hpp"

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

namespace fs = std::filesystem;

/// Text in gnuplot's single quotes, in which nothing but the quote has a meaning. It becomes one line.
std::string plot_text(std::string_view text) {
  std::string out = "'";
  for (const char c : clean_text(text)) {
    if (c == '\'') out += '\'';
    out += c == '\n' || c == '\t' || c == '`' ? ' ' : c;
  }
  return out + "'";
}

/// File name of a chart: letters, digits and dashes.
std::string file_name(std::string_view title) {
  std::string name;
  for (const char c : title) {
    const bool kept = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    const bool capital = c >= 'A' && c <= 'Z';
    if (kept || capital) name += static_cast<char>(capital ? c - 'A' + 'a' : c);
    if (!kept && !capital && !name.empty() && name.back() != '-') name += '-';
  }
  while (name.ends_with('-')) name.pop_back();
  return name.empty() ? "plot" : name.substr(0, 100);
}

std::string mark_line(const PlotMark& mark) {
  return fmt::format(
      "set arrow from {0},graph 0 to {0},graph 1 nohead dt 2 lc rgb '{2}'\n"
      "set label {1} at {0},graph 1.03 center textcolor rgb '{2}'\n",
      mark.step, plot_text(mark.sign), mark_colour);
}

/// Values of a curve as a data block.
void add_values(std::string& script, const MetricSeries& points, size_t index) {
  script += fmt::format("$d{} << END\n", index);
  for (size_t i = 0; i < points.steps.size(); ++i) {
    const double value = points.values[i];
    script += fmt::format("{} {}\n", points.steps[i], std::isfinite(value) ? fmt::format("{:.8g}", value) : "NaN");
  }
  script += "END\n";
}

/// Script for a PNG.
std::string plot_script(const PlotContent& content, const fs::path& output) {
  std::string script =
      "reset\nset terminal pngcairo background rgb 'white' size 900,500 font 'sans-serif,13' noenhanced\n";
  script += fmt::format("set output {}\nset title {} offset 0,0.8\nset xlabel 'step' offset 0,0.6\nset ylabel {}\n",
                        plot_text(output.string()), plot_text(content.title),
                        plot_text(content.unit == "bytes" ? "" : content.unit));
  script += "set grid lc rgb '#dddddd'\nset key outside below\nset datafile missing 'NaN'\n";
  if (content.unit == "bytes") script += "set format y '%.1b %BB'\n";
  std::string lines;
  for (const PlotCurve& curve : content.curves) {
    add_values(script, curve.points, curve.style);
    lines += fmt::format("{}$d{} using 1:2 with {} lw 2 dt {} lc rgb '{}' title {}", lines.empty() ? "plot " : ", ",
                         curve.style, curve.has_points ? "linespoints pt 7 ps 0.5" : "lines", 1 + curve.style % 4,
                         plot_colours[curve.style % plot_colours.size()], plot_text(curve.label));
  }
  for (const PlotMark& mark : content.marks) script += mark_line(mark);
  if (content.logarithmic) script += "set logscale y\n";
  return script + lines + "\nunset output\n";
}

/// First line that is not blank; "" if there is none.
std::string first_line(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  while (std::getline(stream, line) && line.find_first_not_of(" \t\r") == std::string::npos) {
  }
  return line;
}

/// Runs gnuplot with the script. Its messages go to a file beside it.
void run_gnuplot(const fs::path& script) {
  const std::string messages = script.string() + ".messages";
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, messages.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  std::string program = "gnuplot", option = "-d", file = script.string();  // -d: no files of the user's settings
  std::array<char*, 4> arguments = {program.data(), option.data(), file.data(), nullptr};
  pid_t child = 0;
  const int error = posix_spawnp(&child, "gnuplot", &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error == ENOENT) {
    throw UserError(ExitCode::no_device,
                    "gnuplot is not installed, which draws PNG: install it (cmake/install_dependencies.sh, or Debian's "
                    "gnuplot-nox), or choose --format svg or html, which do without");
  }
  if (error != 0) throw UserError(ExitCode::io, fmt::format("gnuplot cannot be started: {}", std::strerror(error)));
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  std::string why = first_line(messages);
  if (why.empty())
    why = WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status))
                              : fmt::format("exit code {}", WEXITSTATUS(status));
  throw UserError(ExitCode::io, fmt::format("gnuplot failed: {}", why));
}

/// A folder that is removed at its end.
class ScratchFolder {
 public:
  explicit ScratchFolder(const fs::path& parent) : path_(temporary_path((parent / "plots").string())) {
    std::error_code error;
    fs::create_directories(path_, error);
    if (error) fail_to_create(path_.string(), "the folder cannot be created", error.value());
  }
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// Pixels.
constexpr double width = 900, left = 80, right = 880, top = 50, bottom = 430, legend_top = 490, legend_row = 20;
constexpr size_t legend_columns = 2;
constexpr size_t max_label = 60;  ///< characters of a label in the legend

/// Places of values between two pixels; long double, so that differences of any two doubles are finite.
struct Scale {
  long double low = std::numeric_limits<long double>::infinity(), high = -low;
  bool logarithmic = false;
  double begin = 0, end = 0;

  void take(double value) {
    if (!std::isfinite(value)) return;
    const long double place = logarithmic ? std::log10(static_cast<long double>(value)) : value;
    low = std::min(low, place);
    high = std::max(high, place);
  }
  /// Leaves room at both ends, and between equal numbers.
  void widen(long double share) {
    const long double room = high > low ? (high - low) * share : std::max<long double>(std::fabs(low) / 20, 1e-6L);
    low -= room;
    high += room;
  }
  double at(long double value) const {
    const long double place = logarithmic ? std::log10(value) : value;
    return begin + static_cast<double>((place - low) / (high - low)) * (end - begin);
  }
};

/// The least of 1, 2, 5 times a power of ten that divides the range into at most `most` parts.
long double tick_distance(long double range, int most, bool whole) {
  const long double least = range / most;
  long double unit = std::pow(10.0L, std::floor(std::log10(least)));
  if (whole) unit = std::max(unit, 1.0L);
  for (const int factor : {1, 2, 5}) {
    if (factor * unit >= least) return factor * unit;
  }
  return 10 * unit;
}

/// Numbers with a label.
std::vector<double> ticks(const Scale& scale, int most, bool whole) {
  std::vector<double> found;
  const long double distance =
      tick_distance(scale.high - scale.low, most, whole || (scale.logarithmic && scale.high - scale.low > 1));
  for (long double tick = std::ceil(scale.low / distance) * distance; tick <= scale.high && found.size() < 20;
       tick += distance) {
    if (std::fabs(tick) < distance / 1e6L) tick = 0;
    const auto number = static_cast<double>(scale.logarithmic ? std::pow(10.0L, tick) : tick);
    if (std::isfinite(number) && (number > 0 || !scale.logarithmic)) found.push_back(number);  // as doubles are
  }
  return found;
}

std::string tick_text(double value, const std::string& unit) {
  if (unit == "bytes" && value >= 0) return bytes_text(value);
  return fmt::format("{:.4g}", value);
}

void add_text(std::string& svg, double x, double y, const char* anchor, std::string_view text,
              std::string_view more = "") {
  fmt::format_to(std::back_inserter(svg), "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y,
                 anchor, more, html_text(text));
}

void add_line(std::string& svg, double x1, double y1, double x2, double y2, std::string_view style) {
  fmt::format_to(std::back_inserter(svg), "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1,
                 y1, x2, y2, style);
}

void add_axes(std::string& svg, const Scale& x, const Scale& y, const PlotContent& content) {
  constexpr const char* grid = "stroke=\"#dddddd\"";
  for (const double tick : ticks(x, 8, true)) {
    add_line(svg, x.at(tick), top, x.at(tick), bottom, grid);
    add_text(svg, x.at(tick), bottom + 18, "middle", fmt::format("{:.9g}", tick));
  }
  for (const double tick : ticks(y, 7, false)) {
    add_line(svg, left, y.at(tick), right, y.at(tick), grid);
    add_text(svg, left - 6, y.at(tick) + 4, "end", tick_text(tick, content.unit));
  }
  fmt::format_to(std::back_inserter(svg),
                 "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#222222\"/>\n", left, top,
                 right - left, bottom - top);
  add_text(svg, (left + right) / 2, bottom + 38, "middle", "step");
  add_text(svg, (left + right) / 2, 20, "middle", content.title, " font-size=\"15\"");
  if (content.unit == "bytes") return;
  add_text(svg, 16, (top + bottom) / 2, "middle", content.unit,
           fmt::format(" transform=\"rotate(-90 16 {})\"", (top + bottom) / 2));
}

std::string line_style(const PlotCurve& curve) {
  constexpr std::array<const char*, 4> dashes = {"", " stroke-dasharray=\"8 4\"", " stroke-dasharray=\"2 3\"",
                                                 " stroke-dasharray=\"8 3 2 3\""};
  return fmt::format("stroke=\"{}\" stroke-width=\"2\"{}", plot_colours[curve.style % plot_colours.size()],
                     dashes[curve.style % dashes.size()]);
}

/// A line for each stretch without gaps; a point alone is a dot.
void add_curve(std::string& svg, const Scale& x, const Scale& y, const PlotCurve& curve) {
  const std::vector<double>& values = curve.points.values;
  for (size_t i = 0; i < values.size();) {
    size_t end = i;
    std::string points;
    for (; end < values.size() && std::isfinite(values[end]); ++end) {
      const double px = x.at(static_cast<long double>(curve.points.steps[end])), py = y.at(values[end]);
      fmt::format_to(std::back_inserter(points), "{:.1f},{:.1f} ", px, py);
      const bool alone = end == i && (end + 1 == values.size() || !std::isfinite(values[end + 1]));
      if (curve.has_points || alone) {
        fmt::format_to(std::back_inserter(svg), "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\" fill=\"{}\"/>\n", px, py,
                       plot_colours[curve.style % plot_colours.size()]);
      }
    }
    if (end > i + 1) {
      fmt::format_to(std::back_inserter(svg), "<polyline points=\"{}\" fill=\"none\" stroke-linejoin=\"round\" {}/>\n",
                     points, line_style(curve));
    }
    i = end + 1;
  }
}

/// The first characters of a text.
std::string shortened(std::string_view text) {
  size_t characters = 0, end = 0;
  for (; end < text.size(); ++end) {
    if ((static_cast<uint8_t>(text[end]) & 0xC0U) != 0x80 && ++characters > max_label) break;
  }
  return std::string(text.substr(0, end)) + (end < text.size() ? "\u2026" : "");
}

void add_legend(std::string& svg, const std::vector<PlotCurve>& curves) {
  for (size_t i = 0; i < curves.size(); ++i) {
    const double x = left + static_cast<double>(i % legend_columns) * (right - left) / legend_columns;
    const double y = legend_top + static_cast<double>(i / legend_columns) * legend_row;
    add_line(svg, x, y - 4, x + 28, y - 4, line_style(curves[i]));
    add_text(svg, x + 34, y, "start", shortened(clean_text(curves[i].label)));
  }
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

std::vector<fs::path> write_plots(const std::vector<fs::path>& folders, const fs::path& folder,
                                  const std::string& format) {
  const std::vector<RunReader> runs = read_runs(folders);
  const ScratchFolder scratch(folder);
  std::string script;
  std::set<std::string> names;
  for (const Chart& chart : plan_charts(runs)) {
    const PlotContent content = plot_content(runs, chart);
    if (content.curves.empty()) continue;
    const std::string base = file_name(chart.title);
    std::string name = base + "." + format;
    for (int i = 2; names.contains(name); ++i) name = fmt::format("{}-{}.{}", base, i, format);
    names.insert(name);
    if (format == "svg") {
      write_whole_file((scratch.path() / name).string(), svg_plot(content));
    } else {
      script += plot_script(content, scratch.path() / name);
    }
  }
  if (!script.empty()) {
    const fs::path script_file = scratch.path() / "plots.gnuplot";
    write_whole_file(script_file.string(), script);
    run_gnuplot(script_file);
  }
  std::vector<fs::path> files;
  for (const std::string& name : names) {
    publish_file((scratch.path() / name).string(), (folder / name).string());
    files.push_back(folder / name);
  }
  return files;
}

std::string svg_plot(const PlotContent& content) {
  Scale x{.begin = left, .end = right}, y{.logarithmic = content.logarithmic, .begin = bottom, .end = top};
  for (const PlotCurve& curve : content.curves) {
    for (size_t i = 0; i < curve.points.values.size(); ++i) {
      x.take(static_cast<double>(curve.points.steps[i]));
      y.take(curve.points.values[i]);
    }
  }
  x.widen(0);
  y.widen(0.04L);
  const size_t rows = (content.curves.size() + legend_columns - 1) / legend_columns;
  const double height = legend_top + static_cast<double>(rows) * legend_row;
  std::string svg = fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" "
      "height=\"{1}\" viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" font-size=\"13\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
      width, height);
  add_axes(svg, x, y, content);
  for (const PlotCurve& curve : content.curves) add_curve(svg, x, y, curve);
  for (const PlotMark& mark : content.marks) {
    const double at = x.at(static_cast<long double>(mark.step));
    if (at < left || at > right) continue;
    add_line(svg, at, top, at, bottom, fmt::format("stroke=\"{}\" stroke-dasharray=\"4 4\"", mark_colour));
    add_text(svg, at, top - 5, "middle", mark.sign, fmt::format(" fill=\"{}\"", mark_colour));
  }
  add_legend(svg, content.curves);
  return svg + "</svg>\n";
}

}  // namespace llmtrain
