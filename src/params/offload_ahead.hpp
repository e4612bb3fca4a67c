#pragma once
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>

#include "params/offload_file.hpp"

namespace llmtrain {

/// Reads one kind of whole units from a file, on a thread, before they are asked for.
class OffloadAhead {
 public:
  /// `memory`: bytes(), aligned to OffloadLayout::alignment.
  OffloadAhead(const OffloadFile& file, size_t kind, char* memory);
  ~OffloadAhead();
  OffloadAhead(const OffloadAhead&) = delete;
  OffloadAhead& operator=(const OffloadAhead&) = delete;

  /// Of the unit that takes most.
  static int64_t bytes(const OffloadLayout& layout, size_t kind);

  /// Begins to read a unit; what was read before is gone. Nothing where there is no such unit.
  void begin(int unit);
  /// The kind of the unit's pieces one behind the other, as in the file, until the next call. Waits.
  const char* take(int unit);
  /// Before the file changes: nothing is being read any more, nor kept.
  void forget();

 private:
  void work();

  const OffloadFile& file_;
  const size_t kind_;
  char* const memory_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int unit_ = -1;  ///< that the memory holds, or that is being read
  bool busy_ = false, stop_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace llmtrain
