// llmtrain: one deck in, one SPMD job, results on disk.

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "core/error.hpp"
#include "core/files/file_handle.hpp"
#include "parallel/job/runtime.hpp"
#include "train/config/config.hpp"
#include "train/run/command_line.hpp"
#include "train/run/program.hpp"
#include "train/run/stop_monitor.hpp"

using namespace llmtrain;

int main(int argc, char** argv) {
  install_signal_handlers();      // until the deck says whether they are to be deadly
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of the write, with a message
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
