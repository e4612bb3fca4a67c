// llmtool sweep: decks with several values of some keys, their runs, and what came out.

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>

#include "core/error.hpp"
#include "core/files/whole_file.hpp"
#include "core/stop_request.hpp"
#include "core/terminal.hpp"
#include "sweep/local_queue.hpp"
#include "sweep/sweep_results.hpp"
#include "tool/tool.hpp"
#include "train/config/load_config.hpp"

namespace llmtrain {
namespace sweep_tool {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string sweep, output;
  bool run = false, collect = false, fit = false, json = false;
  int ranks = 1, threads = 1;
};

/// The files of a sweep below its folder.
class Folder {
 public:
  explicit Folder(const std::string& path) : path_(fs::absolute(path).lexically_normal()) {}

  std::string sweep() const { return path_ / "sweep.ini"; }
  std::string runs() const { return path_ / "runs"; }
  std::string deck(const SweepRun& run) const { return path_ / "decks" / (run.name + ".ini"); }
  std::string log(const SweepRun& run) const { return path_ / "logs" / (run.name + ".out"); }
  std::string file(const char* name) const { return path_ / name; }

 private:
  fs::path path_;
};

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void check_decks(const SweepFile& sweep, const std::vector<SweepRun>& runs, const Folder& folder) {
  for (const SweepRun& run : runs) {
    try {
      load_config(run.deck, folder.deck(run));
    } catch (const UserError& error) {
      throw UserError(error.code(),
                      fmt::format("{}: run {} ({}):\n{}", sweep.name, run.name, values_text(sweep, run), error.what()));
    }
  }
}

/// Writes the decks. A folder has one sweep: with another one its runs would have other values than their names say.
void write_decks(const SweepFile& sweep, const std::vector<SweepRun>& runs, const Folder& folder) {
  const std::string text = text_of(sweep.name);
  std::error_code error;
  if (fs::exists(folder.sweep(), error) && text_of(folder.sweep()) != text) {
    throw UserError(
        ExitCode::cannot_create,
        fmt::format("{}: another sweep is there: choose another --output, or remove that folder", folder.sweep()));
  }
  for (const std::string& path : {folder.deck(runs.front()), folder.log(runs.front())}) {
    fs::create_directories(fs::path(path).parent_path(), error);
    if (error) throw UserError(ExitCode::cannot_create, fmt::format("{}: {}", path, error.message()));
  }
  write_whole_file(folder.sweep(), text);
  for (const SweepRun& run : runs) write_whole_file(folder.deck(run), run.deck);
}

void print_commands(const std::vector<SweepRun>& runs, const Folder& folder, const Options& options) {
  std::cout << fmt::format("{} decks are in {}\n", runs.size(),
                           fs::path(folder.deck(runs.front())).parent_path().string());
  if (runs.size() == 1) {
    std::cout << fmt::format("  sbatch jobs/train.sbatch {}\n", folder.deck(runs.front()));
  } else {
    std::cout << fmt::format("  sbatch --array=0-{} jobs/array.sbatch {}/*.ini\n", runs.size() - 1,
                             fs::path(folder.deck(runs.front())).parent_path().string());
  }
  std::cout << fmt::format(
      "  llmtool sweep {0} --output {1} --run       on this machine\n"
      "  llmtool sweep --output {1} --collect       the best so far\n",
      options.sweep, options.output);
}

std::string program() {
  if (const char* given = std::getenv("LLMTRAIN"); given != nullptr && *given != '\0') return given;
  std::error_code error;
  const fs::path beside = fs::read_symlink("/proc/self/exe", error).parent_path() / "llmtrain";
  return fs::exists(beside, error) ? beside.string() : "llmtrain";
}

void run_all(const SweepFile& sweep, const std::vector<SweepRun>& runs, const Folder& folder, const Options& options) {
  std::vector<QueuedCommand> commands;
  std::map<std::string, std::string> values;
  for (const SweepRun& run : runs) {
    values[run.name] = values_text(sweep, run);
    if (fs::exists(fs::path(folder.runs()) / run.name / "finished.json")) continue;
    std::vector<std::string> words = {program(), folder.deck(run)};
    if (options.ranks > 1) {
      words.insert(words.begin(), {"mpirun", "--bind-to", "none", "-n", std::to_string(options.ranks)});
    }
    commands.push_back({run.name, std::move(words), folder.log(run)});
  }
  setenv("OMP_NUM_THREADS", std::to_string(options.threads).c_str(), 1);
  size_t failed = 0;
  std::string first_failure;
  QueueOptions queue;
  queue.cores = options.ranks * options.threads;
  queue.begins = [&](const QueuedCommand& command) {
    std::cout << fmt::format("{} begins: {}", command.name, values[command.name]) << std::endl;
  };
  queue.ends = [&](const QueuedCommand& command, int code) {
    std::string end = fmt::format("ends with exit code {}", code);
    if (code == 0) end = "has finished";
    if (code == static_cast<int>(ExitCode::stopped)) end = "has stopped";
    std::cout << command.name << ' ' << end << std::endl;
    if (code != 0 && failed++ == 0) first_failure = command.log;
  };
  if (const int signal = run_queue(commands, queue); signal != 0) {
    throw UserError(ExitCode::stopped,
                    fmt::format("sweep: stopped by {}; the same command resumes it", stop_reason(signal)));
  }
  if (failed > 0) {
    throw UserError(ExitCode::bad_content,
                    fmt::format("{} of {} runs have failed: see {}", failed, commands.size(), first_failure));
  }
}

void collect(const SweepFile& sweep, std::vector<SweepRun> runs, const Folder& folder, const Options& options) {
  const std::vector<SweepResult> results = read_results(sweep, std::move(runs), folder.runs());
  constexpr size_t width_of_files = 120;
  const size_t width = isatty(STDOUT_FILENO) == 1 ? terminal_width(STDOUT_FILENO) : width_of_files;
  std::cout << (options.json ? results_json(sweep, results) : results_text(sweep, results, width));
  write_whole_file(folder.file("results.csv"), results_csv(sweep, results));
  write_whole_file(folder.file("parallel_coordinates.svg"), parallel_coordinates_svg(sweep, results));
  if (!std::isnan(results.front().best.value)) write_whole_file(folder.file("best.ini"), results.front().run.deck);
  if (options.fit) std::cout << '\n' << power_law_text(results);
}

void run_sweep(const Options& options) {
  if (options.sweep.empty() && !options.collect) refuse_command_line("sweep: give the sweep's file, or --collect");
  if ((options.fit || options.json) && !options.collect)
    refuse_command_line("sweep: --fit and --json go with --collect");
  if (options.fit && options.json) refuse_command_line("sweep: --fit prints no JSON: give one of them");
  const Folder folder(options.output);
  const SweepFile sweep = read_sweep(options.sweep.empty() ? folder.sweep() : options.sweep);
  std::vector<SweepRun> runs = plan_sweep(sweep, folder.runs());
  if (!options.sweep.empty()) {
    check_decks(sweep, runs, folder);
    write_decks(sweep, runs, folder);
  }
  if (!options.run && !options.collect) return print_commands(runs, folder, options);
  if (options.run) run_all(sweep, runs, folder, options);
  if (options.collect) collect(sweep, std::move(runs), folder, options);
}

}  // namespace
}  // namespace sweep_tool

Subcommand add_sweep(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "sweep", "write decks for several values of keys, {1e-4, 1e-3}, run them, and show which is best");
  auto options = std::make_shared<sweep_tool::Options>();
  app->add_option("SWEEP.ini", options->sweep, "a deck with values in braces; not needed to collect");
  app->add_option("--output", options->output, "folder of the sweep: decks, runs, results")->required();
  app->add_flag("--run", options->run, "run the decks here that have not finished, as many at once as there are cores");
  app->add_option("--ranks", options->ranks, "ranks of a run, with --run")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app->add_option("--threads", options->threads, "threads of a rank, with --run")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app->add_flag("--collect", options->collect,
                "print the runs, the best first; write results.csv, parallel_coordinates.svg and best.ini");
  app->add_flag("--fit", options->fit, "with --collect: fit the loss as a power law of parameters and tokens");
  app->add_flag("--json", options->json, "with --collect: print JSON");
  return {app, [options] { sweep_tool::run_sweep(*options); }};
}

}  // namespace llmtrain
