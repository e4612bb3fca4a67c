#pragma once
// Messages between the ranks of one machine that travel as those of GPUs do: without the help of their hosts. What a
// rank has sent lies in memory of its process that the others can open; it waits there for as long as it takes, and
// goes with the process.

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace llmtrain::emulator {

class Mailbox {
 public:
  explicit Mailbox(MPI_Comm ranks);  ///< collective
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  void send(int to, const void* data, size_t bytes);
  /// The next message of that rank, if it is there.
  bool receive(int from, void* data, size_t bytes);

 private:
  /// Messages from one rank to another, one behind the other.
  struct Box {
    int file = -1;
    std::atomic<uint64_t>* written = nullptr;  ///< bytes; in memory of both
    uint64_t read = 0;
  };

  int rank_ = 0, size_ = 1;
  int own_file_ = -1;
  uint64_t* own_counts_ = nullptr;  ///< bytes sent to each rank
  std::vector<Box> inbox_;
};

}  // namespace llmtrain::emulator
