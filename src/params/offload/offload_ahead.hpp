#pragma once
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>

#include "params/offload/offload_file.hpp"

namespace llmtrain {

/// Prefetches one kind of state from a file, by whole units, on a thread.
class OffloadAhead {
 public:
  /// `memory`: bytes(), aligned to OffloadLayout::alignment.
  OffloadAhead(const OffloadFile& file, size_t kind, char* memory);
  ~OffloadAhead();
  OffloadAhead(const OffloadAhead&) = delete;
  OffloadAhead& operator=(const OffloadAhead&) = delete;

  /// Size of the largest unit.
  static int64_t bytes(const OffloadLayout& layout, size_t kind);

  /// Starts to read a unit; the previously read one becomes invalid. Does nothing if the unit does not exist.
  void begin(int unit);
  /// Waits, and returns the kind of the unit's pieces, contiguous as in the file; valid until the next call.
  const char* take(int unit);
  /// Called before the file changes: waits for reads and discards their data.
  void forget();

 private:
  void work();

  const OffloadFile& file_;
  const size_t kind_;
  char* const memory_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int unit_ = -1;  ///< unit in memory, or being read
  bool busy_ = false, stop_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace llmtrain
