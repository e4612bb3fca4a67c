#pragma once
// The only conversion between byte counts of any size and MPI's int counts: every transfer is split into pieces (Open
// MPI 5.0 has no large-count calls).

#include <mpi.h>

#include <cstdint>
#include <span>
#include <vector>

namespace llmtrain {

inline constexpr int64_t mpi_piece_bytes = int64_t{512} << 20;

/// Throws Error with MPI's text. Communicators of this program return errors instead of aborting.
void mpi_check(int code, const char* call);

/// Returns a duplicate of `comm` with its own message context whose errors are returned.
MPI_Comm mpi_duplicate(MPI_Comm comm);

/// Point-to-point messages in progress. Both ends split alike, so that pieces match in order.
class MpiRequests {
 public:
  explicit MpiRequests(MPI_Comm comm, int64_t piece_bytes = mpi_piece_bytes) : comm_(comm), piece_(piece_bytes) {}
  ~MpiRequests() { clear(); }
  MpiRequests(const MpiRequests&) = delete;
  MpiRequests& operator=(const MpiRequests&) = delete;

  void send(const void* data, int64_t bytes, int to, int tag);
  void receive(void* data, int64_t bytes, int from, int tag);
  void wait();
  bool empty() const { return requests_.empty(); }
  /// Returns true if all are complete; lets MPI make progress.
  bool test();

 private:
  MPI_Request& add();
  void clear();

  MPI_Comm comm_;
  int64_t piece_;
  std::vector<MPI_Request> requests_;
};

void mpi_broadcast(void* data, int64_t bytes, int root, MPI_Comm comm, int64_t piece_bytes = mpi_piece_bytes);
/// Blocking messages. The sender returns when the receiver has asked for the data, which thus do not pile up there.
void mpi_send(const void* data, int64_t bytes, int to, MPI_Comm comm, int64_t piece_bytes = mpi_piece_bytes);
void mpi_receive(void* data, int64_t bytes, int from, MPI_Comm comm, int64_t piece_bytes = mpi_piece_bytes);
/// Maximum in place, elementwise over all ranks.
void mpi_all_reduce(std::span<int64_t> values, MPI_Op operation, MPI_Comm comm, int64_t piece_bytes = mpi_piece_bytes);
void mpi_all_reduce(std::span<uint64_t> values, MPI_Op operation, MPI_Comm comm, int64_t piece_bytes = mpi_piece_bytes);

}  // namespace llmtrain
