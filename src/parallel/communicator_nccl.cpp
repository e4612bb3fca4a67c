// Data communication of GPUs: NCCL, bootstrapped by the MPI control communicator, where each rank has a GPU of its own;
// else, as in tests, staged_transport.hpp.
//
// With LLMTRAIN_NCCL=always a job of one rank opens NCCL, too, so that it can be tried on a machine with one GPU.
//
// NCCL never adds floating-point numbers here: it moves bytes, and this program adds them, in the order of groups. NCCL
// adds integers, whose sums do not depend on the order.

#include <fmt/format.h>
#include <nccl.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/activity.hpp"
#include "core/error.hpp"
#include "core/machine.hpp"
#include "parallel/control_communicator.hpp"
#include "parallel/session_nccl.hpp"
#include "parallel/shard_messages.hpp"
#include "parallel/staged_transport.hpp"
#include "parallel/traffic.hpp"

namespace llmtrain {

struct Transfer::State {
  struct ByNccl {
    std::shared_ptr<Flight> flight;
  };
  struct Staged {
    StagedTransport& transport;
    StagedTransport::Ticket ticket;
  };
  explicit State(std::variant<ByNccl, Staged> chosen) : way(std::move(chosen)) {}
  ~State() {
    if (const auto* staged = std::get_if<Staged>(&way)) staged->transport.abandon(staged->ticket);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  const std::variant<ByNccl, Staged> way;
};

Transfer::Transfer() = default;
Transfer::~Transfer() = default;
Transfer::Transfer(Transfer&&) noexcept = default;
Transfer& Transfer::operator=(Transfer&&) noexcept = default;
Transfer::Transfer(std::unique_ptr<State> state) : state_(std::move(state)) {}

void Transfer::wait(Stream& stream, const Meanwhile& meanwhile) {
  if (!state_) return;
  if (const auto* nccl = std::get_if<State::ByNccl>(&state_->way)) {
    const Flight& flight = *nccl->flight;
    ProfileSpan span(SpanKind::communication, flight.operation);  // ends when the stream has passed the transfer
    span.set_collective(flight.sequence, 0);                      // its bytes are counted where it started
    nccl->flight->done.wait(stream);
  } else {
    const auto& staged = std::get<State::Staged>(state_->way);
    staged.transport.wait(staged.ticket, meanwhile);
  }
  state_.reset();
}

// With NCCL the host never waits, and whether the stream would wait depends on timing. The answer is always true, so
// that the work of a step is the same sequence in every run.
bool Transfer::pending() const {
  if (!state_) return false;
  const auto* staged = std::get_if<State::Staged>(&state_->way);
  return staged == nullptr || !staged->transport.arrived(staged->ticket);
}

const void* Transfer::contribution(int /*rank*/) const { return nullptr; }
void Transfer::release() {}
void Transfer::finish(Stream& stream, const Meanwhile& meanwhile) { wait(stream, meanwhile); }
bool Transfer::is_read() const { return false; }

namespace {

/// True if a job of one rank opens NCCL as well, for tests.
bool wants_session_alone() {
  const char* given = std::getenv("LLMTRAIN_NCCL");
  if (given == nullptr || std::string_view(given) == "auto") return false;
  if (std::string_view(given) == "always") return true;
  throw UserError(ExitCode::command_line, fmt::format("LLMTRAIN_NCCL is '{}': it must be auto or always", given));
}

class GpuCommunicator final : public ControlCommunicator {
 public:
  GpuCommunicator() : choice_(choose_transport(gather_all(device_address()), gather_all(boot_id()))) {
    if (size() == 1 && !wants_session_alone()) return;
    if (choice_.staged) {
      staged_.emplace(MPI_COMM_WORLD);
      return;
    }
    ncclUniqueId id{};
    if (rank() == 0 && ncclGetUniqueId(&id) != ncclSuccess) {
      throw Error(fmt::format("ncclGetUniqueId failed: {}", ncclGetLastError(nullptr)));
    }
    broadcast(&id, sizeof id, 0);
    session_.emplace(size(), rank(), id);
  }

  std::string note() const override { return choice_.note; }
  void reserve(int64_t bytes) override {
    if (staged_) staged_->reserve(bytes);
  }
  std::string sharing_refusal(int64_t /*bytes*/) override { return {}; }
  std::shared_ptr<void> allocate_shared(int64_t /*bytes*/) override { return nullptr; }

  Transfer all_gather(const Tensor& buffer, std::span<const int64_t> borders, Stream& stream) override {
    check_borders(buffer, borders, size());
    if (alone()) return {};
    if (staged_) return staged(staged_->all_gather(buffer, borders, stream));
    each_segment(borders, size(), [&](std::span<const int64_t> segment) { count_ring(buffer, segment); });
    return by_nccl(session_->enqueue("all-gather", buffer.bytes(), stream, [&](ncclComm_t comm, cudaStream_t on) {
      each_segment(borders, size(), [&](std::span<const int64_t> segment) { gather(buffer, segment, comm, on); });
    }));
  }

  Transfer exchange_shards(const Tensor& send, std::span<const int64_t> borders, std::span<const Tensor> received,
                           std::span<const uint8_t> contributes, Stream& stream) override {
    const bool sends = contributes[static_cast<size_t>(rank())] != 0;
    if (sends) check_borders(send, borders, size());
    check_exchange(borders, received, contributes, rank(), send.dtype);
    if (alone()) return {};
    if (staged_) return staged(staged_->exchange(send, borders, received, contributes, stream));
    return by_nccl(session_->enqueue("exchange", send.bytes(), stream, [&](ncclComm_t comm, cudaStream_t on) {
      int64_t calls = 0;
      for (int peer = 0; peer < size(); ++peer) {
        if (peer == rank()) continue;
        const Tensor& place = received[static_cast<size_t>(peer)];
        if (contributes[static_cast<size_t>(peer)] != 0 && !place.empty() && place.numel() > 0) {
          ncclRecv(place.data, static_cast<size_t>(place.bytes()), ncclUint8, peer, comm, on);
          traffic().receive(peer, place.bytes());
          ++calls;
        }
        if (!sends) continue;
        const ShardRange shard = shard_range(send, borders, peer);
        if (shard.bytes == 0) continue;
        ncclSend(shard.data, static_cast<size_t>(shard.bytes), ncclUint8, peer, comm, on);
        traffic().send(peer, shard.bytes);
        ++calls;
      }
      // NCCL runs the calls of a group together, and one group after the other.
      traffic().add_requests(calls);
      traffic().add_requests(-calls);
    }));
  }

  bool sums_on_device() const override { return alone() || session_.has_value(); }
  Transfer sum_on_device(const Tensor& integers, Stream& stream) override {
    LLMTRAIN_CHECK(sums_on_device() && integers.dtype == DType::i64, "integers that NCCL can add");
    if (alone()) return {};
    return by_nccl(session_->enqueue("sum", integers.bytes(), stream, [&](ncclComm_t comm, cudaStream_t on) {
      ncclAllReduce(integers.data, integers.data, static_cast<size_t>(integers.numel()), ncclInt64, ncclSum, comm, on);
    }));
  }

 private:
  /// True if there are no other ranks, and NCCL is not tried without them.
  bool alone() const { return size() == 1 && !session_; }
  void gather(const Tensor& buffer, std::span<const int64_t> borders, ncclComm_t comm, cudaStream_t on) const {
    const ShardRange mine = shard_range(buffer, borders, rank());
    const auto equal = [&](int owner) { return shard_range(buffer, borders, owner).bytes == mine.bytes; };
    bool all_equal = true;
    for (int owner = 0; owner < size(); ++owner) all_equal = all_equal && equal(owner);
    if (all_equal) {
      void* all = shard_range(buffer, borders, 0).data;
      ncclAllGather(mine.data, all, static_cast<size_t>(mine.bytes), ncclUint8, comm, on);
      return;
    }
    for (int owner = 0; owner < size(); ++owner) {  // one in-place broadcast from each owner
      const ShardRange shard = shard_range(buffer, borders, owner);
      if (shard.bytes == 0) continue;
      ncclBroadcast(shard.data, shard.data, static_cast<size_t>(shard.bytes), ncclUint8, owner, comm, on);
    }
  }
  /// Counts a gather as NCCL's ring does it: each rank receives from the one before it, and sends to the next one,
  /// what these have not.
  void count_ring(const Tensor& buffer, std::span<const int64_t> borders) {
    const int next = (rank() + 1) % size(), before = (rank() + size() - 1) % size();
    if (size() == 1) return;
    int64_t bytes = 0;
    for (int owner = 0; owner < size(); ++owner) bytes += shard_range(buffer, borders, owner).bytes;
    traffic().receive(before, bytes - shard_range(buffer, borders, rank()).bytes);
    traffic().send(next, bytes - shard_range(buffer, borders, next).bytes);
  }
  Transfer staged(const StagedTransport::Ticket& ticket) {
    return Transfer(std::make_unique<Transfer::State>(Transfer::State::Staged{*staged_, ticket}));
  }
  static Transfer by_nccl(std::shared_ptr<Flight> flight) {
    return Transfer(std::make_unique<Transfer::State>(Transfer::State::ByNccl{std::move(flight)}));
  }

  TransportChoice choice_;
  std::optional<StagedTransport> staged_;
  std::optional<NcclSession> session_;
};

}  // namespace

std::unique_ptr<Communicator> make_communicator() { return std::make_unique<GpuCommunicator>(); }

std::string transfer_library() {
  int found = NCCL_VERSION_CODE;
  ncclGetVersion(&found);
  return nccl_versions(NCCL_VERSION_CODE, found);
}

}  // namespace llmtrain
