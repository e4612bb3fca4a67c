#pragma once
// Programs that this process starts.

#include <spawn.h>
#include <sys/types.h>

#include <string>
#include <vector>

namespace llmtrain {

/// Owner of a file descriptor that children do not inherit.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }
  bool open() const { return number_ >= 0; }
  void reset(int number) {
    close();
    number_ = number;
  }
  void close();

 private:
  int number_;
};

/// A pipe whose first end, for reading, does not wait.
void open_pipe(Descriptor& reads, Descriptor& writes);

/// Attributes and descriptors of a program to be started: a process group or session of its own, default signals.
class SpawnSettings {
 public:
  enum Isolation : short { group = POSIX_SPAWN_SETPGROUP, session = POSIX_SPAWN_SETSID };

  SpawnSettings(int input, int output, int messages, Isolation isolation);
  ~SpawnSettings();
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;
  /// Returns 0 or the number of an error.
  int spawn(pid_t& process, std::vector<std::string>& words);

 private:
  posix_spawn_file_actions_t actions_{};
  posix_spawnattr_t attributes_{};
};

}  // namespace llmtrain
