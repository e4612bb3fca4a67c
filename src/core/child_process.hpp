#pragma once
// Programs that this process starts.

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>
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
  /// Returns the number, whose owner is somebody else from now on.
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

/// A pipe whose first end, for reading, does not wait.
void open_pipe(Descriptor& reads, Descriptor& writes);

/// A program to be started: a process group or session of its own, default signals. It is killed when the thread that
/// started it ends, however that happens, so that it must be one that lives as long as the process.
class SpawnSettings {
 public:
  enum class Isolation : uint8_t { group, session };

  SpawnSettings(int input, int output, int messages, Isolation isolation)
      : descriptors_{input, output, messages}, isolation_(isolation) {}
  /// Returns 0 or the number of an error. Main thread only.
  int spawn(pid_t& process, std::vector<std::string>& words) const;

 private:
  /// Runs in the child, which shares the memory of its parent until the program begins. Returns the number of an error.
  int become(char* const* arguments, pid_t parent) const;

  std::array<int, 3> descriptors_;
  Isolation isolation_;
};

}  // namespace llmtrain
