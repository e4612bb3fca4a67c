#include "core/child_process.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "core/error.hpp"

namespace llmtrain {

void Descriptor::close() {
  if (number_ >= 0) ::close(number_);
  number_ = -1;
}

void open_pipe(Descriptor& reads, Descriptor& writes) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw Error("cannot create a pipe for a program");
  reads.reset(ends[0]);
  writes.reset(ends[1]);
  ::fcntl(reads.number(), F_SETFL, O_NONBLOCK);
}

int SpawnSettings::become(char* const* arguments, pid_t parent) const {
  if (isolation_ == Isolation::session) {
    ::setsid();
  } else {
    ::setpgid(0, 0);
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) return ESRCH;  // it has ended meanwhile
  for (int signal = 1; signal < NSIG; ++signal) {
    if (signal != SIGKILL && signal != SIGSTOP) ::signal(signal, SIG_DFL);
  }
  for (int place = 0; place < 3; ++place) {
    if (::dup2(descriptors_[static_cast<size_t>(place)], place) < 0) return errno;
  }
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execvp(arguments[0], arguments);
  return errno;
}

int SpawnSettings::spawn(pid_t& process, std::vector<std::string>& words) const {
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  // As posix_spawn, which has no death signal: no handler of this process may run in the child.
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t parent = ::getpid();
  volatile int error = 0;
  const pid_t child = ::vfork();  // NOLINT: a copy of a process with a model in its memory takes too long
  if (child == 0) {
    error = become(arguments.data(), parent);
    ::_exit(127);
  }
  if (child < 0) error = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0 && child > 0) ::waitpid(child, nullptr, 0);
  if (error == 0) process = child;
  return error;
}

}  // namespace llmtrain
