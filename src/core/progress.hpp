#pragma once
// Progress of long work, for a terminal. The work says how far it is; the program's display, if there is one, shows it.

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

namespace llmtrain {

struct ProgressState {
  std::string what;
  double done = 0;           ///< fraction
  double seconds_left = -1;  ///< negative: not known yet
};

class ProgressDisplay {
 public:
  virtual ~ProgressDisplay() = default;
  /// Called a few times a second, from any thread.
  virtual void show(const ProgressState& state) = 0;
  virtual void clear() = 0;
};

/// Sets the display of this process for its lifetime; the one before is back afterwards.
class ProgressScope {
 public:
  /// Null: the display stays as it is.
  explicit ProgressScope(ProgressDisplay* display);
  ~ProgressScope();
  ProgressScope(const ProgressScope&) = delete;
  ProgressScope& operator=(const ProgressScope&) = delete;

 private:
  ProgressDisplay* before_;
};

/// Work from its construction to its destruction. Short work is not shown.
class Progress {
 public:
  /// total: units of work, at least one.
  explicit Progress(std::string what, int64_t total = 1);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// So many more units are done. Callable from several threads.
  void add(int64_t units = 1) { set(done_.fetch_add(units, std::memory_order_relaxed) + units); }
  /// So many units are done.
  void set(int64_t done);
  void set_fraction(double done);
  /// True if a display is there.
  static bool is_displayed();

 private:
  std::string what_;
  int64_t total_;
  double begin_;
  std::atomic<int64_t> done_{0};
  std::atomic<double> next_;  ///< time of the next update
  std::atomic<bool> shown_{false};
};

}  // namespace llmtrain
