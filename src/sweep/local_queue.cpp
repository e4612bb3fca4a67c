#include "sweep/local_queue.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/wait.h>

#include <cstring>
#include <map>

#include "core/child_process.hpp"
#include "core/error.hpp"

namespace llmtrain {

namespace {

/// Cores that this process may use, divided among commands that run at once.
class Slots {
 public:
  explicit Slots(int cores) {
    CPU_ZERO(&all_);
    if (::sched_getaffinity(0, sizeof(all_), &all_) != 0) throw Error("sched_getaffinity fails");
    if (CPU_COUNT(&all_) < cores) {
      throw UserError(
          ExitCode::command_line,
          fmt::format("a run wants {} cores, and there are {}: lower --ranks or --threads", cores, CPU_COUNT(&all_)));
    }
    int taken = 0;
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (!CPU_ISSET(core, &all_)) continue;
      if (taken++ % cores == 0) free_.emplace_back();
      CPU_SET(core, &free_.back());
    }
    if (taken % cores != 0) free_.pop_back();
  }

  bool has_free() const { return !free_.empty(); }
  cpu_set_t take() {
    const cpu_set_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void give_back(const cpu_set_t& slot) { free_.push_back(slot); }
  const cpu_set_t& all() const { return all_; }

 private:
  cpu_set_t all_{};
  std::vector<cpu_set_t> free_;
};

void set_cores(const cpu_set_t& cores) {
  if (::sched_setaffinity(0, sizeof(cores), &cores) != 0) throw Error("sched_setaffinity fails");
}

/// A child has the cores of the thread that starts it.
pid_t start(const QueuedCommand& command, const cpu_set_t& cores, const cpu_set_t& all) {
  const Descriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const Descriptor log(::open(command.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!log.open()) {
    throw UserError(ExitCode::cannot_create, fmt::format("{}: {}", command.log, std::strerror(errno)));
  }
  std::vector<std::string> words = command.words;
  pid_t process = -1;
  set_cores(cores);
  const int error = SpawnSettings(nothing.number(), log.number(), log.number(), SpawnSettings::Isolation::group)
                        .spawn(process, words);
  set_cores(all);
  if (error == 0) return process;
  throw UserError(ExitCode::missing_input, fmt::format("{}: {}", words.front(), std::strerror(error)));
}

}  // namespace

void run_queue(const std::vector<QueuedCommand>& commands, const QueueOptions& options) {
  struct Running {
    const QueuedCommand* command;
    cpu_set_t cores;
  };
  Slots slots(options.cores);
  std::map<pid_t, Running> running;
  for (auto next = commands.begin(); next != commands.end() || !running.empty();) {
    if (next != commands.end() && slots.has_free()) {
      const cpu_set_t cores = slots.take();
      options.begins(*next);
      running[start(*next, cores, slots.all())] = {&*next, cores};
      ++next;
      continue;
    }
    int status = 0;
    const pid_t ended = ::waitpid(-1, &status, 0);
    const auto found = running.find(ended);
    if (found == running.end()) {
      if (ended < 0 && errno != EINTR) throw Error("waitpid fails");
      continue;
    }
    slots.give_back(found->second.cores);
    options.ends(*found->second.command, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    running.erase(found);
  }
}

}  // namespace llmtrain
