#pragma once
// The one layer between byte counts of any size and MPI's int counts: every transfer is cut into pieces (Open MPI 5.0
// has no large-count calls).

#include <mpi.h>

#include <cstdint>
#include <span>
#include <vector>

namespace llmtrain {

inline constexpr int64_t mpi_piece_bytes = int64_t{512} << 20;

/// Throws Error with MPI's text. Communicators of this program return errors instead of ending the process.
void mpi_check(int code, const char* call);

/// A duplicate of `comm` with its own message space whose errors are returned.
MPI_Comm mpi_duplicate(MPI_Comm comm);

/// Point-to-point messages under way. Both ends cut alike, so that pieces meet in order.
class MpiRequests {
 public:
  explicit MpiRequests(MPI_Comm comm, int64_t piece_bytes = mpi_piece_bytes) : comm_(comm), piece_(piece_bytes) {}

  void send(const void* data, int64_t bytes, int to, int tag);
  void receive(void* data, int64_t bytes, int from, int tag);
  void wait();
  bool empty() const { return requests_.empty(); }
  /// Whether all are complete; lets MPI make progress.
  bool test();

 private:
  MPI_Comm comm_;
  int64_t piece_;
  std::vector<MPI_Request> requests_;
};

void mpi_broadcast(void* data, int64_t bytes, int root, MPI_Comm comm, int64_t piece_bytes = mpi_piece_bytes);
/// In place, elementwise over all ranks.
void mpi_all_reduce(std::span<int64_t> values, MPI_Op operation, MPI_Comm comm, int64_t piece_bytes = mpi_piece_bytes);
void mpi_all_reduce(std::span<uint64_t> values, MPI_Op operation, MPI_Comm comm, int64_t piece_bytes = mpi_piece_bytes);

}  // namespace llmtrain
