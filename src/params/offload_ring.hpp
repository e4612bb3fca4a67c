#pragma once
// The pieces of an OffloadFile in turn through a few buffers in memory: while one piece is worked on, those behind it
// are read and those before it are written.

#include <array>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "params/offload_file.hpp"

namespace llmtrain {

class OffloadRing {
 public:
  static constexpr size_t slots = 4;  ///< one in use, three being transferred: enough to keep a disk busy

  /// Each buffer takes the largest piece, aligned to OffloadLayout::alignment. Starts a thread per slot.
  OffloadRing(OffloadFile& file, const std::array<char*, slots>& buffers);
  ~OffloadRing();
  OffloadRing(const OffloadRing&) = delete;
  OffloadRing& operator=(const OffloadRing&) = delete;

  /// Kinds of every piece that a pass reads, then writes: ranges [first, last), empty where first = last.
  struct Kinds {
    size_t read_first, read_last, write_first, write_last;
  };
  /// One thread makes passes, one after the other.
  void begin(const Kinds& kinds);
  /// Waits for the next piece. False at the end, when everything is on the disk.
  bool next();
  size_t piece() const { return static_cast<size_t>(current_); }
  /// Its memory, as all its kinds lie in the file.
  char* data() const { return slots_[piece() % slots].buffer; }
  /// Ends a pass wherever it is.
  void abandon();

 private:
  /// What the slot's thread does next: both may be none.
  struct Slot {
    char* buffer = nullptr;
    int64_t write = -1, read = -1;  ///< pieces
    bool busy = false;
    std::exception_ptr error;
    std::thread thread;
  };

  void work(Slot& slot);
  void submit(int64_t write, int64_t read);
  void wait(Slot& slot);
  void transfer(Slot& slot);
  char* part(const Slot& slot, size_t piece, size_t kind) const;

  OffloadFile& file_;
  const int64_t pieces_;
  Kinds kinds_{};
  int64_t current_ = -1;
  std::array<Slot, slots> slots_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
};

}  // namespace llmtrain
