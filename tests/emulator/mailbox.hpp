#pragma once
// Messages between the ranks of one machine that travel like those of GPUs: without the help of their hosts. Sent data
// lie in memory of the sender's process that the others can open; they stay until received, and vanish with the
// process.

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
  /// Returns the next message of that rank, if it has arrived.
  bool receive(int from, void* data, size_t bytes);

 private:
  /// Messages from one rank to another, in order.
  struct Box {
    int file = -1;
    std::atomic<uint64_t>* written = nullptr;  ///< bytes; in memory of both ranks
    uint64_t read = 0;
  };

  int rank_ = 0, size_ = 1;
  int own_file_ = -1;
  uint64_t* own_counts_ = nullptr;  ///< bytes sent to each rank
  std::vector<Box> inbox_;
};

}  // namespace llmtrain::emulator
