#include "emulator/nccl.h"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "emulator/mailbox.hpp"

using namespace llmtrain::emulator;

namespace {

enum class Kind { all_gather, broadcast, sum, send, receive };
struct Call {
  Kind kind;
  const void* from;
  void* to;
  size_t bytes;
  int peer;
};

/// A group of calls, executed together: this rank sends its part when the stream has reached the group, and then
/// receives those of the others as they arrive.
class Flight {
 public:
  Flight(const std::shared_ptr<Mailbox>& mail, std::vector<Call> calls, bool hangs)
      : mail_(mail), calls_(std::move(calls)), hangs_(hangs) {}

  void give() {
    for (const Call& c : calls_) {
      if (c.kind == Kind::receive || (c.kind == Kind::broadcast && c.peer != mail_->rank())) continue;
      const std::vector<char> message(static_cast<const char*>(c.from), static_cast<const char*>(c.from) + c.bytes);
      for (int to = 0; to < mail_->size(); ++to) {
        if (c.kind != Kind::send || to == c.peer) mail_->send(to, message.data(), message.size());
      }
    }
    for (const Call& c : calls_) expect(c);
    given_ = true;
  }
  bool is_given() const { return given_; }

  bool arrived() {
    if (hangs_) return false;
    for (Part& part : parts_) {
      if (part.there) continue;
      part.message.resize(part.bytes);
      part.there = mail_->receive(part.from, part.message.data(), part.bytes);
      if (!part.there) return false;  // in order
    }
    return true;
  }

  void take() const {
    count_transfer();
    for (const Part& part : parts_) {
      if (!part.there) continue;
      if (part.added) {
        add(part);
      } else {
        std::memcpy(part.to, part.message.data(), part.bytes);
      }
    }
  }

 private:
  struct Part {
    int from;
    char* to;
    size_t bytes;
    bool added = false;  ///< true if added to existing values
    bool there = false;
    std::vector<char> message = {};
  };

  static void add(const Part& part) {
    for (size_t at = 0; at < part.bytes; at += sizeof(uint64_t)) {
      uint64_t sum = 0, term = 0;
      std::memcpy(&sum, part.to + at, sizeof sum);
      std::memcpy(&term, part.message.data() + at, sizeof term);
      sum += term;
      std::memcpy(part.to + at, &sum, sizeof sum);
    }
  }

  void expect(const Call& c) {
    char* to = static_cast<char*>(c.to);
    if (c.kind == Kind::receive || c.kind == Kind::broadcast) parts_.push_back({c.peer, to, c.bytes});
    for (int from = 0; from < mail_->size() && c.kind == Kind::all_gather; ++from) {
      parts_.push_back({from, to + static_cast<size_t>(from) * c.bytes, c.bytes});
    }
    for (int from = 0; from < mail_->size() && c.kind == Kind::sum; ++from) {
      parts_.push_back({from, to, c.bytes, from > 0});
    }
  }

  std::shared_ptr<Mailbox> mail_;
  std::vector<Call> calls_;
  bool hangs_, given_ = false;
  std::vector<Part> parts_;
};

struct Session {
  std::shared_ptr<Mailbox> mail;
  int64_t groups = 0;
  std::atomic<bool> aborted = false;
  std::atomic<ncclResult_t> error = ncclSuccess;
  std::atomic<bool> in_progress = false;  ///< true from a call until the query of its state
  cudaStream_t stream = nullptr;          ///< stream of the pending call
  std::shared_ptr<Flight> flight;         ///< flight of the pending call
};

struct Group {
  int depth = 0;
  cudaStream_t stream = nullptr;
  std::shared_ptr<Session> session;
  std::vector<Call> calls;
  ncclResult_t error = ncclSuccess;
};
thread_local Group group;

}  // namespace

struct ncclComm {
  std::shared_ptr<Session> session;
};

namespace {

void expect_settled(const Session& session) {
  if (session.in_progress) fail("NCCL is called while what was called before is in progress");
}

ncclResult_t add(const Call& call, ncclComm_t comm, cudaStream_t stream) {
  const Session& session = *comm->session;
  expect_settled(session);
  ncclGroupStart();
  if (call.peer < 0 || call.peer >= session.mail->size()) {
    group.error = ncclInvalidArgument;
    return ncclGroupEnd();
  }
  const size_t parts = call.kind == Kind::all_gather ? static_cast<size_t>(session.mail->size()) : 1;
  if (call.from != nullptr) expect_device(call.from, call.bytes, "a transfer of NCCL");
  if (call.to != nullptr) expect_device(call.to, call.bytes * parts, "a transfer of NCCL");
  if (!group.calls.empty() && (group.stream != stream || group.session != comm->session)) {
    fail("a group of NCCL's calls on two streams or communicators is not emulated");
  }
  group.stream = stream;
  group.session = comm->session;
  group.calls.push_back(call);
  return ncclGroupEnd();
}

}  // namespace

const char* ncclGetErrorString(ncclResult_t code) {
  switch (code) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "error";
  }
}
const char* ncclGetLastError(ncclComm_t /*comm*/) { return "emulated"; }
ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  return ncclSuccess;
}

/// Rejects two ranks on one GPU, like NCCL.
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId /*id*/, int rank, ncclConfig_t* config) {
  if (config->blocking != 0) fail("NCCL's calls that block are not emulated");
  int device = 0;
  cudaGetDevice(&device);
  std::array<char, 320> mine{};
  gethostname(mine.data(), 256);
  cudaDeviceGetPCIBusId(mine.data() + 256, 64, device);
  auto session = std::make_shared<Session>();
  session->mail = std::make_shared<Mailbox>(MPI_COMM_WORLD);
  if (session->mail->size() != size || session->mail->rank() != rank) {
    fail("communicators of some ranks only are not emulated");
  }
  std::vector<std::array<char, 320>> all(static_cast<size_t>(size));
  MPI_Allgather(mine.data(), 320, MPI_BYTE, all.data(), 320, MPI_BYTE, MPI_COMM_WORLD);
  for (auto one = all.begin(); one != all.end(); ++one) {
    if (std::find(one + 1, all.end(), *one) != all.end()) session->error = ncclInvalidUsage;
  }
  session->in_progress = true;
  *comm = new ncclComm{session};
  return ncclInProgress;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  expect_settled(*comm->session);
  comm->session->in_progress = true;
  return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  expect_settled(*comm->session);
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->session->aborted = true;
  delete comm;
  return ncclSuccess;
}
/// A group is pending until this rank has sent its part: its host may then wait for the others elsewhere, since they do
/// not wait for it.
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  Session& session = *comm->session;
  *error = session.error;
  if (session.in_progress && *error == ncclSuccess) {
    *error = ncclInProgress;
    const auto given = [&] { return session.flight == nullptr || session.flight->is_given() || session.aborted; };
    if (session.flight != nullptr) go_on(session.stream, given);
    if (given()) {
      session.flight = nullptr;
      session.in_progress = false;
    }
  }
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (group.depth == 0) return ncclInvalidUsage;
  if (--group.depth > 0) return ncclSuccess;
  const Group ended = std::exchange(group, {});
  if (ended.error != ncclSuccess || ended.calls.empty()) return ended.error;
  refuse_while_recording("a transfer of NCCL");
  const std::shared_ptr<Session> session = ended.session;
  if (gpu_is_broken()) {  // its launching threads report it later
    session->error = ncclUnhandledCudaError;
    return ncclInProgress;
  }
  const bool faulty = ++session->groups == fault().number && (fault().kind == "hang" || fault().kind == "lost");
  const auto flight = std::make_shared<Flight>(session->mail, ended.calls, faulty);
  enqueue(ended.stream, "a transfer of NCCL", [flight, session, lost = faulty && fault().kind == "lost"] {
    if (!session->aborted) flight->give();
    if (lost) session->error = ncclRemoteError;
  });
  enqueue(
      ended.stream, "a transfer of NCCL", [flight] { flight->take(); },
      [flight, session] { return session->aborted || flight->arrived(); });
  session->stream = ended.stream;
  session->flight = flight;
  session->in_progress = true;
  return ncclInProgress;
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t /*bytes*/, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return add({Kind::broadcast, from, to, count, root}, comm, stream);
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t /*bytes*/, ncclComm_t comm,
                           cudaStream_t stream) {
  return add({Kind::all_gather, from, to, count, 0}, comm, stream);
}
ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t operation,
                           ncclComm_t comm, cudaStream_t stream) {
  if (type != ncclInt64 || operation != ncclSum) fail("a sum of NCCL's of other than 64-bit integers is not emulated");
  return add({Kind::sum, from, to, count * sizeof(int64_t), 0}, comm, stream);
}
ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t /*bytes*/, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add({Kind::send, data, nullptr, count, peer}, comm, stream);
}
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t /*bytes*/, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add({Kind::receive, nullptr, data, count, peer}, comm, stream);
}
