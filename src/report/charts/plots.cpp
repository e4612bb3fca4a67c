#include "report/charts/plots.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <set>

#include "core/error.hpp"
#include "core/files/whole_file.hpp"
#include "report/charts/plot_content.hpp"
#include "report/html_text.hpp"
#include "report/run_facts.hpp"

namespace llmtrain {
namespace {

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

}  // namespace

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

}  // namespace llmtrain
