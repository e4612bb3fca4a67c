#pragma once
#include <functional>
#include <string>
#include <vector>

namespace llmtrain {

/// A command of a queue.
struct QueuedCommand {
  std::string name;
  std::vector<std::string> words;  ///< the first is a path, or a name in PATH
  std::string log;                 ///< file for its output, which is appended
};

struct QueueOptions {
  int cores = 1;  ///< of each command: as many run at once as this process may use cores for
  std::function<void(const QueuedCommand&)> begins;
  std::function<void(const QueuedCommand&, int code)> ends;  ///< exit code, or 128 + signal
};

/// Runs the commands in their order, each on cores of its own. SIGINT, SIGTERM or SIGHUP stops them as SIGUSR1 does;
/// the others do not begin, and a second signal kills. When this process ends, so do they. Returns the number of the
/// signal, or 0. Main thread only. Throws UserError: command_line if a command wants more cores than there are,
/// cannot_create for a log file, missing_input if a program cannot be started.
int run_queue(const std::vector<QueuedCommand>& commands, const QueueOptions& options);

}  // namespace llmtrain
