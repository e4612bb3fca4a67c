#include "parallel/mpi_transfer.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.hpp"

namespace llmtrain {

namespace {

/// Calls body(offset, count) for [0, total) in pieces.
template <class Body>
void for_pieces(int64_t total, int64_t piece, const Body& body) {
  for (int64_t begin = 0; begin < total; begin += piece) {
    body(begin, static_cast<int>(std::min(piece, total - begin)));
  }
}

int64_t bytes_of(std::span<const MpiRequests::Part> parts) {
  int64_t bytes = 0;
  for (const MpiRequests::Part& part : parts) bytes += part.bytes;
  return bytes;
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

MPI_Request& MpiRequests::add(int peer) {
  count_.add(job_rank(peer));
  return requests_.emplace_back(MPI_REQUEST_NULL);
}

void MpiRequests::clear() {
  count_.clear();
  requests_.clear();
  complete_ = 0;
}

void MpiRequests::send(const void* data, int64_t bytes, int to, int tag) {
  for_pieces(bytes, piece_, [&](int64_t begin, int count) {
    MPI_Request& request = add(to);
    traffic().send(job_rank(to), count);
    mpi_check(MPI_Isend(static_cast<const char*>(data) + begin, count, MPI_BYTE, to, tag, comm_, &request),
              "MPI_Isend");
  });
}

void MpiRequests::receive(void* data, int64_t bytes, int from, int tag) {
  for_pieces(bytes, piece_, [&](int64_t begin, int count) {
    MPI_Request& request = add(from);
    traffic().receive(job_rank(from), count);
    mpi_check(MPI_Irecv(static_cast<char*>(data) + begin, count, MPI_BYTE, from, tag, comm_, &request), "MPI_Irecv");
  });
}

/// Calls begin(type, request) with the type of the parts at their addresses, which the message in progress keeps.
template <class Begin>
void MpiRequests::begin_joined(std::span<const Part> parts, int peer, const Begin& begin) {
  lengths_.clear();
  addresses_.clear();
  for (const Part& part : parts) {
    lengths_.push_back(static_cast<int>(part.bytes));
    mpi_check(MPI_Get_address(part.data, &addresses_.emplace_back()), "MPI_Get_address");
  }
  MPI_Datatype type = MPI_DATATYPE_NULL;
  mpi_check(
      MPI_Type_create_hindexed(static_cast<int>(parts.size()), lengths_.data(), addresses_.data(), MPI_BYTE, &type),
      "MPI_Type_create_hindexed");
  mpi_check(MPI_Type_commit(&type), "MPI_Type_commit");
  MPI_Request& request = add(peer);
  const int code = begin(type, &request);
  mpi_check(MPI_Type_free(&type), "MPI_Type_free");
  mpi_check(code, "a message of several parts");
}

void MpiRequests::send(std::span<const Part> parts, int to, int tag) {
  traffic().send(job_rank(to), bytes_of(parts));
  begin_joined(parts, to, [&](MPI_Datatype type, MPI_Request* request) {
    return MPI_Isend(MPI_BOTTOM, 1, type, to, tag, comm_, request);
  });
}

void MpiRequests::receive(std::span<const Part> parts, int from, int tag) {
  traffic().receive(job_rank(from), bytes_of(parts));
  begin_joined(parts, from, [&](MPI_Datatype type, MPI_Request* request) {
    return MPI_Irecv(MPI_BOTTOM, 1, type, from, tag, comm_, request);
  });
}

void MpiRequests::wait() {
  if (requests_.empty()) return;
  mpi_check(MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE), "MPI_Waitall");
  clear();
}

bool MpiRequests::test() {
  constexpr size_t at_once = 64;
  while (complete_ < requests_.size()) {
    const size_t count = std::min(at_once, requests_.size() - complete_);
    int done = 0;
    mpi_check(MPI_Testall(static_cast<int>(count), &requests_[complete_], &done, MPI_STATUSES_IGNORE), "MPI_Testall");
    if (done == 0) return false;
    complete_ += count;
  }
  if (!requests_.empty()) clear();
  return true;
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
