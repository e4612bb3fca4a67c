// llmtool compare: what differs between runs, and what came out.

#include <unistd.h>

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "core/terminal.hpp"
#include "report/comparison.hpp"
#include "report/run_facts.hpp"
#include "tool/tool.hpp"

namespace llmtrain {
namespace compare_tool {
namespace {

struct Options {
  std::vector<std::string> runs;
  size_t width = 0;  ///< 0: automatic
  bool json = false;
};

void compare(const Options& options) {
  const std::vector<RunReader> runs = read_runs(run_folders(options.runs));
  for (const RunReader& run : runs) {
    if (!run.problem().empty()) print_warnings({run.problem()});
  }
  constexpr size_t width_of_files = 120;
  const size_t automatic = isatty(STDOUT_FILENO) == 1 ? terminal_width(STDOUT_FILENO) : width_of_files;
  std::cout << (options.json ? comparison_json(runs)
                             : comparison_text(runs, options.width > 0 ? options.width : automatic));
}

}  // namespace
}  // namespace compare_tool

Subcommand add_compare(CLI::App& program) {
  CLI::App* app = program.add_subcommand("compare", "show what differs between runs, and their best and last metrics");
  auto options = std::make_shared<compare_tool::Options>();
  app->add_option("RUN", options->runs, "folders of runs, or folders of such")->required();
  app->add_option("--width", options->width,
                  "columns of the text; 0 = those of the terminal, or 120 in a file. What does not fit comes below");
  app->add_flag("--json", options->json, "print JSON");
  return {app, [options] { compare_tool::compare(*options); }};
}

}  // namespace llmtrain
