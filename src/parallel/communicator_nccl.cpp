// The device plane over NCCL, bootstrapped by the MPI host plane. All transfers run on a stream of their own, ordered
// behind the caller's stream by events, so that they overlap with its later work.

#include <cuda_runtime.h>
#include <fmt/format.h>
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/activity.hpp"
#include "core/error.hpp"
#include "parallel/host_plane.hpp"
#include "parallel/shard_range.hpp"

namespace llmtrain {

namespace {

void cuda_check(cudaError_t code, const char* call) {
  if (code != cudaSuccess) throw Error(fmt::format("{} failed: {}", call, cudaGetErrorString(code)));
}

void nccl_check(ncclResult_t code, const char* call) {
  if (code == ncclSuccess || code == ncclInProgress) return;
  throw Error(fmt::format("{} failed: {} ({})", call, ncclGetErrorString(code), ncclGetLastError(nullptr)));
}

cudaStream_t native(const Stream& stream) { return static_cast<cudaStream_t>(stream.native()); }

/// What transfers share with their communicator: events to reuse, and errors that NCCL meets behind our back.
class NcclSession {
 public:
  NcclSession() = default;
  NcclSession(const NcclSession&) = delete;
  NcclSession& operator=(const NcclSession&) = delete;
  ~NcclSession() {
    for (cudaEvent_t event : free_) cudaEventDestroy(event);
    // Destroying waits for the peers; after an error only aborting is safe.
    if (comm != nullptr) broken_ ? ncclCommAbort(comm) : ncclCommDestroy(comm);
  }

  cudaEvent_t take_event() {
    cudaEvent_t event = nullptr;
    if (free_.empty()) {
      cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    } else {
      event = free_.back();
      free_.pop_back();
    }
    return event;
  }
  void give_event(cudaEvent_t event) { free_.push_back(event); }

  void poll() {
    ncclResult_t error = ncclSuccess;
    nccl_check(ncclCommGetAsyncError(comm, &error), "ncclCommGetAsyncError");
    if (error == ncclSuccess || error == ncclInProgress) return;
    broken_ = true;
    nccl_check(error, "a transfer between GPUs");
  }

  ncclComm_t comm = nullptr;

 private:
  std::vector<cudaEvent_t> free_;
  bool broken_ = false;
};

}  // namespace

struct Transfer::State {
  State(std::shared_ptr<NcclSession> of, cudaEvent_t at) : session(std::move(of)), done(at) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { session->give_event(done); }

  std::shared_ptr<NcclSession> session;
  cudaEvent_t done;
};

Transfer::Transfer() = default;
Transfer::~Transfer() = default;
Transfer::Transfer(Transfer&&) noexcept = default;
Transfer& Transfer::operator=(Transfer&&) noexcept = default;
Transfer::Transfer(std::unique_ptr<State> state) : state_(std::move(state)) {}

void Transfer::wait(Stream& stream, const Meanwhile& /*meanwhile*/) {
  if (!state_) return;
  state_->session->poll();
  cuda_check(cudaStreamWaitEvent(native(stream), state_->done, 0), "cudaStreamWaitEvent");
  state_.reset();
}

bool Transfer::pending() const {
  if (!state_) return false;
  state_->session->poll();
  const cudaError_t code = cudaEventQuery(state_->done);
  if (code != cudaErrorNotReady) cuda_check(code, "cudaEventQuery");
  return code == cudaErrorNotReady;
}

const void* Transfer::piece(int /*rank*/) const { return nullptr; }
void Transfer::release() {}
void Transfer::finish(Stream& stream, const Meanwhile& meanwhile) { wait(stream, meanwhile); }
bool Transfer::is_read() const { return false; }

namespace {

class NcclCommunicator final : public HostPlane {
 public:
  NcclCommunicator() : session_(std::make_shared<NcclSession>()) {
    check_devices_differ();
    ncclUniqueId id{};
    if (rank() == 0) nccl_check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    broadcast(&id, sizeof id, 0);
    nccl_check(ncclCommInitRank(&session_->comm, size(), id, rank()), "ncclCommInitRank");
  }

  std::string sharing_refusal(int64_t /*bytes*/) override { return {}; }
  std::shared_ptr<void> allocate_shared(int64_t /*bytes*/) override { return nullptr; }

  Transfer all_gather(const Tensor& buffer, std::span<const int64_t> borders, Stream& stream) override {
    check_borders(buffer, borders, size());
    return enqueue(stream, [&] {
      // Shards differ by a chunk at most, but they differ: one broadcast from each owner, in place.
      for (int owner = 0; owner < size(); ++owner) {
        const ShardRange shard = shard_range(buffer, borders, owner);
        if (shard.bytes == 0) continue;
        nccl_check(ncclBroadcast(shard.data, shard.data, static_cast<size_t>(shard.bytes), ncclUint8, owner,
                                 session_->comm, native(stream_)),
                   "ncclBroadcast");
      }
    });
  }

  Transfer exchange_shards(const Tensor& send, std::span<const int64_t> borders, std::span<const Tensor> received,
                           std::span<const uint8_t> contributes, Stream& stream) override {
    const bool sends = contributes[static_cast<size_t>(rank())] != 0;
    if (sends) check_borders(send, borders, size());
    check_exchange(borders, received, contributes, rank(), send.dtype);
    return enqueue(stream, [&] {
      for (int peer = 0; peer < size(); ++peer) {
        if (peer == rank()) continue;
        const Tensor& place = received[static_cast<size_t>(peer)];
        if (contributes[static_cast<size_t>(peer)] != 0 && !place.empty() && place.numel() > 0) {
          nccl_check(ncclRecv(place.data, static_cast<size_t>(place.bytes()), ncclUint8, peer, session_->comm,
                              native(stream_)),
                     "ncclRecv");
        }
        if (!sends) continue;
        const ShardRange shard = shard_range(send, borders, peer);
        if (shard.bytes == 0) continue;
        nccl_check(
            ncclSend(shard.data, static_cast<size_t>(shard.bytes), ncclUint8, peer, session_->comm, native(stream_)),
            "ncclSend");
      }
    });
  }

 private:
  /// Runs grouped NCCL calls on the own stream, behind everything that `stream` holds now.
  template <class F>
  Transfer enqueue(Stream& stream, const F& calls) {
    const CollectiveScope scope("transfer between GPUs", 0);
    session_->poll();
    ready_.record(stream);
    ready_.wait(stream_);
    nccl_check(ncclGroupStart(), "ncclGroupStart");
    calls();
    nccl_check(ncclGroupEnd(), "ncclGroupEnd");
    auto state = std::make_unique<Transfer::State>(session_, session_->take_event());
    cuda_check(cudaEventRecord(state->done, native(stream_)), "cudaEventRecord");
    return Transfer(std::move(state));
  }

  /// NCCL refuses two ranks on one GPU with a message that does not say what to do.
  void check_devices_differ() {
    int device = 0;
    std::array<char, 32> bus{};
    cuda_check(cudaGetDevice(&device), "cudaGetDevice");
    cuda_check(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device), "cudaDeviceGetPCIBusId");
    std::array<char, 256> host{};
    gethostname(host.data(), host.size() - 1);
    const std::vector<std::string> all = gather_all(fmt::format("GPU {} of {}", bus.data(), host.data()));
    for (size_t r = 0; r < all.size(); ++r) {
      const auto first = static_cast<size_t>(std::find(all.begin(), all.end(), all[r]) - all.begin());
      if (first == r) continue;
      throw UserError(ExitCode::no_device, fmt::format("ranks {} and {} share {}: start one rank per GPU (under Slurm: "
                                                       "--gpus-per-task=1)",
                                                       first, r, all[r]));
    }
  }

  std::shared_ptr<NcclSession> session_;
  Stream stream_;
  Event ready_;
};

}  // namespace

std::unique_ptr<Communicator> make_communicator() { return std::make_unique<NcclCommunicator>(); }

}  // namespace llmtrain
