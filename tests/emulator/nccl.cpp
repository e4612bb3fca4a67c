#include "emulator/nccl.h"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

using namespace llmtrain::emulator;

struct ncclComm {
  int rank, size;
  MPI_Comm mpi = MPI_COMM_NULL;
};

namespace {

enum class Kind { broadcast, gather, send, receive };
struct Call {
  Kind kind;
  const void* from;
  void* to;
  size_t bytes;
  int peer;
  ncclComm* comm;
};
struct Group {
  int depth = 0;
  cudaStream_t stream = nullptr;
  std::vector<Call> calls;
};
thread_local Group group;

/// All at once, as NCCL does; through memory of the host, which MPI can read.
void carry_out(const std::vector<Call>& calls) {
  std::vector<std::vector<char>> staged(calls.size());
  std::vector<MPI_Request> requests(calls.size(), MPI_REQUEST_NULL);
  for (size_t i = 0; i < calls.size(); ++i) {
    const Call& c = calls[i];
    const size_t own = c.kind == Kind::gather ? c.bytes * static_cast<size_t>(c.comm->rank) : 0;
    const bool gives =
        c.kind == Kind::send || c.kind == Kind::gather || (c.kind == Kind::broadcast && c.peer == c.comm->rank);
    staged[i].resize(c.kind == Kind::gather ? c.bytes * static_cast<size_t>(c.comm->size) : c.bytes);
    if (gives) std::memcpy(staged[i].data() + own, c.from, c.bytes);
    const int bytes = static_cast<int>(c.bytes);
    switch (c.kind) {
      case Kind::broadcast:
        MPI_Ibcast(staged[i].data(), bytes, MPI_BYTE, c.peer, c.comm->mpi, &requests[i]);
        break;
      case Kind::gather:
        MPI_Iallgather(MPI_IN_PLACE, 0, MPI_BYTE, staged[i].data(), bytes, MPI_BYTE, c.comm->mpi, &requests[i]);
        break;
      case Kind::send:
        MPI_Isend(staged[i].data(), bytes, MPI_BYTE, c.peer, 0, c.comm->mpi, &requests[i]);
        break;
      case Kind::receive:
        MPI_Irecv(staged[i].data(), bytes, MPI_BYTE, c.peer, 0, c.comm->mpi, &requests[i]);
        break;
    }
  }
  MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
  for (size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].kind != Kind::send) std::memcpy(calls[i].to, staged[i].data(), staged[i].size());
  }
}

ncclResult_t add(const Call& call, cudaStream_t stream) {
  if (call.peer < 0 || call.peer >= call.comm->size) return ncclInvalidArgument;
  if (call.from != nullptr) expect_device(call.from, call.bytes, "a transfer of NCCL");
  const size_t received = call.kind == Kind::gather ? call.bytes * static_cast<size_t>(call.comm->size) : call.bytes;
  if (call.to != nullptr) expect_device(call.to, received, "a transfer of NCCL");
  ncclGroupStart();
  if (!group.calls.empty() && group.stream != stream) fail("a group of NCCL's calls on two streams is not emulated");
  group.stream = stream;
  group.calls.push_back(call);
  return ncclGroupEnd();
}

}  // namespace

const char* ncclGetErrorString(ncclResult_t code) {
  switch (code) {
    case ncclSuccess:
      return "no error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    default:
      return "error";
  }
}
const char* ncclGetLastError(ncclComm_t /*comm*/) { return "emulated"; }
ncclResult_t ncclGetVersion(int* version) {
  *version = 22000;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  return ncclSuccess;
}

/// Two ranks on one GPU are refused, as NCCL does.
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId /*id*/, int rank) {
  int device = 0;
  cudaGetDevice(&device);
  std::array<char, 320> mine{};
  gethostname(mine.data(), 256);
  cudaDeviceGetPCIBusId(mine.data() + 256, 64, device);
  *comm = nullptr;
  MPI_Comm mpi = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &mpi);
  int ranks = 0;
  MPI_Comm_size(mpi, &ranks);
  if (ranks != size) fail("communicators of some ranks only are not emulated");
  std::vector<std::array<char, 320>> all(static_cast<size_t>(size));
  MPI_Allgather(mine.data(), 320, MPI_BYTE, all.data(), 320, MPI_BYTE, mpi);
  for (auto one = all.begin(); one != all.end(); ++one) {
    if (std::find(one + 1, all.end(), *one) != all.end()) return ncclInvalidUsage;
  }
  *comm = new ncclComm{rank, size, mpi};
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* /*config*/) {
  return ncclCommInitRank(comm, size, id, rank);
}
ncclResult_t ncclCommFinalize(ncclComm_t /*comm*/) { return ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized == 0) MPI_Comm_free(&comm->mpi);
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t /*comm*/, ncclResult_t* error) {
  *error = ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (group.depth == 0) return ncclInvalidUsage;
  if (--group.depth > 0) return ncclSuccess;
  std::vector<Call> calls = std::exchange(group.calls, {});
  if (calls.empty()) return ncclSuccess;
  refuse_while_recording("a transfer of NCCL");
  enqueue(group.stream, "a transfer of NCCL", [calls = std::move(calls)] { carry_out(calls); });
  drain(group.stream);
  return ncclSuccess;
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t /*bytes*/, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return add({Kind::broadcast, from, to, count, root, comm}, stream);
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t /*bytes*/, ncclComm_t comm,
                           cudaStream_t stream) {
  return add({Kind::gather, from, to, count, 0, comm}, stream);
}
ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t /*bytes*/, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add({Kind::send, data, nullptr, count, peer, comm}, stream);
}
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t /*bytes*/, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add({Kind::receive, nullptr, data, count, peer, comm}, stream);
}
