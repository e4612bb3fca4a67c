// llmtool serve: a page in the browser that shows runs while they go on.

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <memory>

#include "core/error.hpp"
#include "core/files/file_handle.hpp"
#include "report/dashboard/dashboard_server.hpp"
#include "tool/tool.hpp"

namespace llmtrain {
namespace {

constexpr int max_inherited = 4096;

/// As the child of a job: ends with it, yields to it, and keeps nothing of it open.
void become_child(pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) _exit(0);  // it has ended already
  ::setpriority(PRIO_PROCESS, 0, 19);
  for (int file = STDERR_FILENO + 1; file < max_inherited; ++file) ::close(file);
  for (const int of_the_job : {SIGHUP, SIGUSR1, SIGUSR2}) ::signal(of_the_job, SIG_IGN);
}

/// Waits for SIGINT or SIGTERM, which all threads that are started from here on leave to this one.
class EndOfService {
 public:
  EndOfService() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGTERM);
    ::pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    ::signal(SIGPIPE, SIG_IGN);
    ::signal(SIGALRM, [](int) { _exit(0); });
  }
  /// From the signal on the process has 0.7 s to close its connections: a file system may hang.
  void wait() const {
    int received = 0;
    ::sigwait(&signals_, &received);
    itimerval patience{};
    patience.it_value.tv_usec = 700'000;
    ::setitimer(ITIMER_REAL, &patience, nullptr);
  }

 private:
  sigset_t signals_{};
};

void serve(const DashboardOptions& options, pid_t parent) {
  if (parent > 0) become_child(parent);
  const EndOfService end;
  const DashboardServer server(options);
  write_standard_output(fmt::format("{}\ntunnel     {}\n", server.url(), server.tunnel()));
  end.wait();
}

}  // namespace

Subcommand add_serve(CLI::App& program) {
  CLI::App* app = program.add_subcommand("serve", "show runs in the browser while they run");
  const auto options = std::make_shared<DashboardOptions>();
  const auto parent = std::make_shared<pid_t>(0);
  app->add_option("RUN", options->runs, "folders of runs, or folders of such")->required();
  app->add_option("--port", options->port, "port to listen at; 0 = any that is free")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  app->add_option("--address", options->address,
                  "address to listen at; any but the loopback (0.0.0.0 for all) requires the token that "
                  "is printed")
      ->capture_default_str();
  app->add_flag("--token", options->token, "require a token on the loopback device, too, which all users share");
  app->add_option("--child-of", *parent, "")->group("");  // of dashboard.port
  return {app, [options, parent] { serve(*options, *parent); }};
}

}  // namespace llmtrain
