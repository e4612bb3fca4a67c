#include "sweep/local_queue.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
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

/// Runs commands, and ends them when this process is asked to end.
class LocalQueue {
 public:
  explicit LocalQueue(const QueueOptions& options) : options_(options), slots_(options.cores) {
    sigemptyset(&signals_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&signals_, signal);
    ::pthread_sigmask(SIG_BLOCK, &signals_, &before_);
  }
  ~LocalQueue() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  LocalQueue(const LocalQueue&) = delete;
  LocalQueue& operator=(const LocalQueue&) = delete;

  int run(const std::vector<QueuedCommand>& commands) {
    for (auto next = commands.begin();;) {
      for (; stopped_by_ == 0 && next != commands.end() && slots_.has_free(); ++next) begin(*next);
      if (running_.empty()) return stopped_by_;
      int signal = 0;
      sigwait(&signals_, &signal);
      if (signal == SIGCHLD) {
        collect_ended();
      } else {
        end_all(signal);
      }
    }
  }

 private:
  struct Running {
    const QueuedCommand* command;
    cpu_set_t cores;
  };

  void begin(const QueuedCommand& command) {
    const cpu_set_t cores = slots_.take();
    options_.begins(command);
    running_[start(command, cores, slots_.all())] = {&command, cores};
  }
  void collect_ended() {
    int status = 0;
    for (pid_t ended = 0; (ended = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      const auto found = running_.find(ended);
      if (found == running_.end()) continue;
      slots_.give_back(found->second.cores);
      options_.ends(*found->second.command, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
      running_.erase(found);
    }
  }
  /// Runs save a checkpoint when they get SIGUSR1, which mpirun passes on; a second request kills them.
  void end_all(int signal) {
    for (const auto& [process, run] : running_) ::kill(-process, stopped_by_ == 0 ? SIGUSR1 : SIGKILL);
    stopped_by_ = signal;
  }

  const QueueOptions& options_;
  Slots slots_;
  std::map<pid_t, Running> running_;
  int stopped_by_ = 0;
  sigset_t signals_{}, before_{};
};

}  // namespace

int run_queue(const std::vector<QueuedCommand>& commands, const QueueOptions& options) {
  return LocalQueue(options).run(commands);
}

}  // namespace llmtrain
