#pragma once
// The process interface of main.cpp; plain_process.cpp, device_process.cpp or parallel_process.cpp implements it.

namespace llmtrain::test {

/// CTest counts this exit code as skipped.
inline constexpr int skipped = 77;

/// Lives from before the first test until after the last.
class Process {
 public:
  Process(int& argc, char**& argv);
  ~Process();  // NOLINT(performance-trivially-destructible): trivial in plain_process.cpp alone
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  bool has_device() const { return has_device_; }
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  /// Returns the worst exit code of all ranks. Collective.
  int agree(int code) const;
  /// Ends all ranks, since the others would wait for one that left a test early.
  [[noreturn]] void abort() const;

 private:
  bool has_device_ = true;
  int rank_ = 0;
  int ranks_ = 1;
};

}  // namespace llmtrain::test
