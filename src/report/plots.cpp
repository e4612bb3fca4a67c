#include "report/plots.hpp"

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
#include "report/chart_plan.hpp"
#include "report/html_text.hpp"
#include "report/run_facts.hpp"

namespace llmtrain {
namespace {

namespace fs = std::filesystem;

constexpr size_t most_plot_marks = 100;
constexpr std::array<const char*, 8> colours = {"#0a5fb4", "#b3420a", "#0b7350", "#8b3a8b",
                                                "#86620a", "#b4234f", "#2f7189", "#5b5b5b"};

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

std::string mark(int64_t step, std::string_view sign) {
  return fmt::format(
      "set arrow from {0},graph 0 to {0},graph 1 nohead dt 2 lc rgb '#7a3e00'\n"
      "set label {1} at {0},graph 1.03 center textcolor rgb '#7a3e00'\n",
      step, plot_text(sign));
}

std::string marks(const RunReader& run) {
  std::string text;
  for (const RunEvent& event : run.events()) text += mark(event.step, event.kind == RunEvent::Kind::resume ? "R" : "B");
  const size_t stride = 1 + run.bad_steps().size() / most_plot_marks;
  for (size_t i = 0; i < run.bad_steps().size(); i += stride) text += mark(run.bad_steps()[i].step, "x");
  return text;
}

/// Values of a line as a data block; returns how many are finite.
size_t add_values(std::string& script, const MetricSeries& series, size_t index) {
  const MetricSeries curve = reduced_curve(series, plot_buckets);
  size_t finite = 0;
  script += fmt::format("$d{} << END\n", index);
  for (size_t i = 0; i < curve.steps.size(); ++i) {
    const bool is_finite = std::isfinite(curve.values[i]);
    finite += is_finite ? 1 : 0;
    script += fmt::format("{} {}\n", curve.steps[i], is_finite ? fmt::format("{:.8g}", curve.values[i]) : "NaN");
  }
  script += "END\n";
  return finite;
}

/// Script for a chart, or "" if there is nothing to draw.
std::string plot_script(const std::vector<RunReader>& runs, const Chart& chart, const std::string& format,
                        const fs::path& output) {
  std::string script = fmt::format("reset\nset terminal {} size 900,500 font 'sans-serif,13' noenhanced\n",
                                   format == "png" ? "pngcairo background rgb 'white'" : "svg background rgb 'white'");
  script += fmt::format("set output {}\nset title {} offset 0,0.8\nset xlabel 'step' offset 0,0.6\nset ylabel {}\n",
                        plot_text(output.string()), plot_text(chart.title),
                        plot_text(chart.unit == "bytes" ? "" : chart.unit));
  script += "set grid lc rgb '#dddddd'\nset key outside below\nset datafile missing 'NaN'\n";
  if (chart.unit == "bytes") script += "set format y '%.1b %BB'\n";
  std::string lines;
  bool positive = true;
  for (size_t i = 0; i < chart.lines.size(); ++i) {
    const ChartLine& line = chart.lines[i];
    const MetricSeries& series = runs[line.run].metrics().at(line.metric);
    if (add_values(script, series, i) == 0) continue;
    positive &= std::ranges::none_of(series.values, [](double value) { return value <= 0; });
    lines += fmt::format("{}$d{} using 1:2 with {} lw 2 dt {} lc rgb '{}' title {}", lines.empty() ? "plot " : ", ", i,
                         series.steps.size() <= 40 ? "linespoints pt 7 ps 0.5" : "lines", 1 + i % 4, colours[i % 8],
                         plot_text(line.label));
  }
  if (runs.size() == 1) script += marks(runs.front());
  if (chart.logarithmic && positive) script += "set logscale y\n";
  return lines.empty() ? "" : script + lines + "\nunset output\n";
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
                    "gnuplot is not installed, which draws pictures: install it (Debian: gnuplot-nox), or write the "
                    "report with --format html, which does without");
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
    const std::string base = file_name(chart.title);
    std::string name = base + "." + format;
    for (int i = 2; names.contains(name); ++i) name = fmt::format("{}-{}.{}", base, i, format);
    const std::string plot = plot_script(runs, chart, format, scratch.path() / name);
    if (plot.empty()) continue;
    names.insert(name);
    script += plot;
  }
  const fs::path script_file = scratch.path() / "plots.gnuplot";
  write_whole_file(script_file.string(), script);
  run_gnuplot(script_file);
  std::vector<fs::path> files;
  for (const std::string& name : names) {
    publish_file((scratch.path() / name).string(), (folder / name).string());
    files.push_back(folder / name);
  }
  return files;
}

}  // namespace llmtrain
