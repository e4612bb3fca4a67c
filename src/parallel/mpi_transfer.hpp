#pragma once
// The only conversion between byte counts of any size and MPI's int counts: every transfer is split into pieces (Open
// MPI 5.0 has no large-count calls).

#include <mpi.h>

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/traffic.hpp"

namespace llmtrain {

/// Throws Error with MPI's text. Communicators of this program return errors instead of aborting.
void mpi_check(int code, const char* call);

/// Returns a duplicate of `comm` with its own message context whose errors are returned.
MPI_Comm mpi_duplicate(MPI_Comm comm);

/// Point-to-point messages in progress. Both ends split alike, so that pieces match in order.
class MpiRequests {
 public:
  /// `job_ranks`: numbers in the job of the ranks of a group; empty: the job's own.
  explicit MpiRequests(MPI_Comm comm, int64_t piece_bytes = max_message_bytes, std::span<const int> job_ranks = {})
      : comm_(comm), piece_(piece_bytes), job_ranks_(job_ranks) {}
  MpiRequests(const MpiRequests&) = delete;
  MpiRequests& operator=(const MpiRequests&) = delete;

  void send(const void* data, int64_t bytes, int to, int tag);
  void receive(void* data, int64_t bytes, int from, int tag);

  struct Part {
    void* data;
    int64_t bytes;
  };
  // Several parts as one message of at most max_message_bytes. Both ends have parts of the same sizes.
  void send(std::span<const Part> parts, int to, int tag);
  void receive(std::span<const Part> parts, int from, int tag);

  void wait();
  bool empty() const { return requests_.empty(); }
  /// Returns true if all are complete; lets MPI make progress. A call looks at some of them, since MPI looks at each.
  bool test();

  bool is_of_group() const { return !job_ranks_.empty(); }
  /// The number by which traffic is counted.
  int job_rank(int rank) const { return job_ranks_.empty() ? rank : job_ranks_[static_cast<size_t>(rank)]; }

 private:
  MPI_Request& add(int peer);
  void clear();
  template <class Begin>
  void begin_joined(std::span<const Part> parts, int peer, const Begin& begin);

  MPI_Comm comm_;
  int64_t piece_;
  std::span<const int> job_ranks_;
  std::vector<MPI_Request> requests_;
  size_t complete_ = 0;  ///< number of the first ones that are known to be complete
  RequestCount count_;
  std::vector<int> lengths_;  ///< of the parts of one message, and their addresses
  std::vector<MPI_Aint> addresses_;
};

void mpi_broadcast(void* data, int64_t bytes, int root, MPI_Comm comm, int64_t piece_bytes = max_message_bytes);
/// Blocking messages. The sender returns when the receiver has asked for the data, which thus do not pile up there.
void mpi_send(const void* data, int64_t bytes, int to, MPI_Comm comm, int64_t piece_bytes = max_message_bytes);
void mpi_receive(void* data, int64_t bytes, int from, MPI_Comm comm, int64_t piece_bytes = max_message_bytes);
/// Reduces by `operation` in place, elementwise over all ranks.
void mpi_all_reduce(std::span<int64_t> values, MPI_Op operation, MPI_Comm comm,
                    int64_t piece_bytes = max_message_bytes);
void mpi_all_reduce(std::span<uint64_t> values, MPI_Op operation, MPI_Comm comm,
                    int64_t piece_bytes = max_message_bytes);

}  // namespace llmtrain
