#pragma once
// Streams the pieces of an OffloadFile through a ring of buffers: while one piece is in use, the next ones are read and
// the previous ones written.

#include <array>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "params/offload/offload_file.hpp"

namespace llmtrain {

class OffloadRing {
 public:
  static constexpr size_t slots = 4;  ///< one in use, three being transferred: enough to keep a disk busy

  /// Each buffer holds the largest piece, aligned to OffloadLayout::alignment. Starts a thread per slot.
  OffloadRing(OffloadFile& file, const std::array<char*, slots>& buffers);
  ~OffloadRing();
  OffloadRing(const OffloadRing&) = delete;
  OffloadRing& operator=(const OffloadRing&) = delete;

  /// Kinds of every piece that a pass reads, then writes: ranges [first, last), empty if first = last.
  struct Kinds {
    size_t read_first, read_last, write_first, write_last;
  };
  /// Starts a pass. All passes run on one thread, one after the other.
  void begin(const Kinds& kinds);
  /// Waits for the next piece. Returns false at the end, when all pieces are on the disk.
  bool next();
  size_t piece() const { return static_cast<size_t>(current_); }
  /// Memory of the current piece, with all its kinds as in the file.
  char* data() const { return slots_[piece() % slots].buffer; }
  /// Ends a pass early.
  void abandon();

 private:
  /// Next work of a slot's thread; read and write may both be absent.
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
