#include "parallel/mpi_transfer.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.hpp"
#include "parallel/traffic.hpp"

namespace llmtrain {

namespace {

/// Calls body(offset, count) for [0, total) in pieces.
template <class Body>
void for_pieces(int64_t total, int64_t piece, const Body& body) {
  for (int64_t begin = 0; begin < total; begin += piece) {
    body(begin, static_cast<int>(std::min(piece, total - begin)));
  }
}

}  // namespace

void mpi_check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "unknown error";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(fmt::format("{} failed: {}", call, text));
}

MPI_Comm mpi_duplicate(MPI_Comm comm) {
  MPI_Comm copy = MPI_COMM_NULL;
  mpi_check(MPI_Comm_dup(comm, &copy), "MPI_Comm_dup");
  mpi_check(MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return copy;
}

MPI_Request& MpiRequests::add() {
  traffic().add_requests(1);
  return requests_.emplace_back(MPI_REQUEST_NULL);
}

void MpiRequests::clear() {
  traffic().add_requests(-static_cast<int64_t>(requests_.size()));
  requests_.clear();
}

void MpiRequests::send(const void* data, int64_t bytes, int to, int tag) {
  for_pieces(bytes, piece_, [&](int64_t begin, int count) {
    MPI_Request& request = add();
    traffic().send(to, count);
    mpi_check(MPI_Isend(static_cast<const char*>(data) + begin, count, MPI_BYTE, to, tag, comm_, &request),
              "MPI_Isend");
  });
}

void MpiRequests::receive(void* data, int64_t bytes, int from, int tag) {
  for_pieces(bytes, piece_, [&](int64_t begin, int count) {
    MPI_Request& request = add();
    traffic().receive(from, count);
    mpi_check(MPI_Irecv(static_cast<char*>(data) + begin, count, MPI_BYTE, from, tag, comm_, &request), "MPI_Irecv");
  });
}

void MpiRequests::wait() {
  if (requests_.empty()) return;
  mpi_check(MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE), "MPI_Waitall");
  clear();
}

bool MpiRequests::test() {
  if (requests_.empty()) return true;
  int done = 0;
  mpi_check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE),
            "MPI_Testall");
  if (done != 0) clear();
  return done != 0;
}

void mpi_broadcast(void* data, int64_t bytes, int root, MPI_Comm comm, int64_t piece_bytes) {
  for_pieces(bytes, piece_bytes, [&](int64_t begin, int count) {
    mpi_check(MPI_Bcast(static_cast<char*>(data) + begin, count, MPI_BYTE, root, comm), "MPI_Bcast");
  });
}

void mpi_send(const void* data, int64_t bytes, int to, MPI_Comm comm, int64_t piece_bytes) {
  for_pieces(bytes, piece_bytes, [&](int64_t begin, int count) {
    mpi_check(MPI_Ssend(static_cast<const char*>(data) + begin, count, MPI_BYTE, to, 0, comm), "MPI_Ssend");
  });
}

void mpi_receive(void* data, int64_t bytes, int from, MPI_Comm comm, int64_t piece_bytes) {
  for_pieces(bytes, piece_bytes, [&](int64_t begin, int count) {
    mpi_check(MPI_Recv(static_cast<char*>(data) + begin, count, MPI_BYTE, from, 0, comm, MPI_STATUS_IGNORE),
              "MPI_Recv");
  });
}

namespace {

void all_reduce(int64_t count_all, void* values, MPI_Datatype type, MPI_Op operation, MPI_Comm comm,
                int64_t piece_bytes) {
  const int64_t piece = std::max<int64_t>(1, piece_bytes / static_cast<int64_t>(sizeof(int64_t)));
  for_pieces(count_all, piece, [&](int64_t begin, int count) {
    void* at = static_cast<int64_t*>(values) + begin;
    mpi_check(MPI_Allreduce(MPI_IN_PLACE, at, count, type, operation, comm), "MPI_Allreduce");
  });
}

}  // namespace

void mpi_all_reduce(std::span<int64_t> values, MPI_Op operation, MPI_Comm comm, int64_t piece_bytes) {
  all_reduce(static_cast<int64_t>(values.size()), values.data(), MPI_INT64_T, operation, comm, piece_bytes);
}

void mpi_all_reduce(std::span<uint64_t> values, MPI_Op operation, MPI_Comm comm, int64_t piece_bytes) {
  all_reduce(static_cast<int64_t>(values.size()), values.data(), MPI_UINT64_T, operation, comm, piece_bytes);
}

}  // namespace llmtrain
