// llmtrain: an SPMD program that runs one deck and writes its results to disk.

#include <csignal>
#include <cstdlib>

#include "config/config.hpp"
#include "core/error.hpp"
#include "core/files/file_handle.hpp"
#include "parallel/job/runtime.hpp"
#include "tasks/command_line.hpp"
#include "tasks/program.hpp"
#include "train/run/stop_monitor.hpp"
#include "train/run/version.hpp"

using namespace llmtrain;

int main(int argc, char** argv) {
  install_signal_handlers();      // recorded until the deck says whether signals end the task at once
  std::signal(SIGXFSZ, SIG_IGN);  // exceeding a file size limit becomes an error of the write, with a message
  CommandLine command;
  try {
    command = parse_command_line(argc, argv);
    if (command.help) {
      write_standard_output(usage_text() + "\n" + help_text(command.help_topic));
      return EXIT_SUCCESS;
    }
    if (command.version) {
      write_standard_output(version_text());
      return EXIT_SUCCESS;
    }
    Runtime runtime(argc, argv);
    return runtime.guard([&] { return run_program(command, runtime); });
  } catch (const UserError& error) {
    print_as_first_process(std::string("llmtrain: ") + error.what() + "\n");
    return static_cast<int>(error.code());
  }
}
