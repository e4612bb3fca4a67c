// llmtool report and export-viz: curves, tables and text of runs as a page or as pictures.

#include "report/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "report/charts/plots.hpp"
#include "report/run_reader.hpp"
#include "tool/tool.hpp"

namespace llmtrain {
namespace report_tool {
namespace {

struct Options {
  std::vector<std::string> runs, formats;
  std::string output = "report";
};

void run_report(const Options& options) {
  for (const std::string& format : options.formats) {
    if (format != "html" && format != "png" && format != "svg") {
      refuse_command_line(fmt::format("--format {}: it must be html, png or svg", format));
    }
  }
  const std::vector<std::filesystem::path> runs = run_folders(options.runs);
  std::vector<std::string> formats = options.formats;
  std::ranges::stable_partition(formats, [](const std::string& format) { return format != "png"; });  // it may fail
  for (const std::string& format : formats) {
    const std::filesystem::path folder = options.output;
    if (format == "html") {
      write_report(runs, folder / "report.html");
      std::cout << without_controls((folder / "report.html").string()) << '\n';
    } else {
      for (const std::filesystem::path& file : write_plots(runs, folder, format)) {
        std::cout << without_controls(file.string()) << '\n';
      }
    }
  }
}

Subcommand add(CLI::App& program, const char* name, const char* description, const std::vector<std::string>& formats) {
  CLI::App* app = program.add_subcommand(name, description);
  auto options = std::make_shared<Options>();
  options->formats = formats;
  app->add_option("RUN", options->runs, "folders of runs, or folders of such")->required();
  app->add_option("--output", options->output, "folder for the files, which replace older ones")->capture_default_str();
  app->add_option(
         "--format", options->formats,
         "html: one page, report.html; svg: a picture of each plot; png: the same by gnuplot; several by commas")
      ->delimiter(',')
      ->capture_default_str();
  return {app, [options] { run_report(*options); }};
}

}  // namespace
}  // namespace report_tool

Subcommand add_report(CLI::App& program) {
  return report_tool::add(program, "report", "write a page with curves, results, samples and decks of runs", {"html"});
}

Subcommand add_export_viz(CLI::App& program) {
  return report_tool::add(program, "export-viz", "write the plots of the report as pictures", {"png", "svg"});
}

}  // namespace llmtrain
