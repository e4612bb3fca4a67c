#include "core/child_process.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>

#include "core/error.hpp"

namespace llmtrain {

void Descriptor::close() {
  if (number_ >= 0) ::close(number_);
  number_ = -1;
}

void open_pipe(Descriptor& reads, Descriptor& writes) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw Error("no pipe for a program");
  reads.reset(ends[0]);
  writes.reset(ends[1]);
  ::fcntl(reads.number(), F_SETFL, O_NONBLOCK);
}

SpawnSettings::SpawnSettings(int input, int output, int messages, Isolation isolation) {
  posix_spawn_file_actions_init(&actions_);
  posix_spawn_file_actions_adddup2(&actions_, input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions_, output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions_, messages, STDERR_FILENO);
  posix_spawnattr_init(&attributes_);
  sigset_t signals;
  sigfillset(&signals);
  posix_spawnattr_setsigdefault(&attributes_, &signals);
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes_, &signals);
  posix_spawnattr_setpgroup(&attributes_, 0);
  posix_spawnattr_setflags(&attributes_,
                           static_cast<short>(isolation | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK));
}

SpawnSettings::~SpawnSettings() {
  posix_spawn_file_actions_destroy(&actions_);
  posix_spawnattr_destroy(&attributes_);
}

int SpawnSettings::spawn(pid_t& process, std::vector<std::string>& words) {
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  return posix_spawnp(&process, arguments.front(), &actions_, &attributes_, arguments.data(), environ);
}

}  // namespace llmtrain
