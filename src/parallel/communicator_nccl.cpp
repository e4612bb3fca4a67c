// Data communication of GPUs: NCCL, bootstrapped by the MPI control communicator, where each rank has a GPU of its own;
// else, as in tests, staged_transport.hpp.
//
// With LLMTRAIN_NCCL=always a job of one rank opens NCCL, too, so that it can be tried on a machine with one GPU.
//
// Ranks send to ranks of their node, and to the rank of their place on every other node: gradients by
// adding_ranks_per_node(), and weights, whose shards travel once to each node and then inside it, unless all shards
// have the same size: NCCL's ring of all ranks then also enters each node once. One communicator is enough for that.
// exchange_shards(), and Muon's send_and_receive(), connect any two ranks when they first move something between them.
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
#include "parallel/node_grid.hpp"
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

// Ranks of a job that all connect to each other at its start. In a larger one, which would take too long and too much
// memory for that, a rank connects to its node and to its place on other nodes, and to others at the first transfer.
constexpr int max_all_to_all = 512;

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
    session_ = std::make_shared<NcclSession>(size(), rank(), id, first_peers());
  }
  /// A group's tensors travel by messages over the job's session: NCCL does not support two of them side by side.
  GpuCommunicator(const GpuCommunicator& job, int number)
      : ControlCommunicator(job, number), choice_{job.choice_.staged, {}}, session_(job.session_) {
    if (job.staged_) staged_.emplace(host(), job_ranks_);
  }

  std::unique_ptr<Communicator> make_group(int number) override {
    return std::make_unique<GpuCommunicator>(*this, number);
  }

  std::string note() const override { return choice_.note; }
  void reserve(int64_t bytes) override {
    if (staged_) staged_->reserve(bytes);
  }
  std::string sharing_refusal(int64_t /*bytes*/) override { return {}; }
  std::shared_ptr<void> allocate_shared(int64_t /*bytes*/) override { return nullptr; }
  int adding_ranks_per_node() const override { return session_ != nullptr ? ranks_per_node() : 0; }

  Transfer all_gather(const Tensor& buffer, std::span<const int64_t> borders, Stream& stream) override {
    check_borders(buffer, borders, size());
    if (alone()) return {};
    if (staged_) return staged(staged_->all_gather(buffer, borders, stream));
    const auto by_node = [&](std::span<const int64_t> segment) {
      return is_group() || (grid().has_levels() && !are_equal(buffer, segment));
    };
    const auto share_and_gather = [&](ncclComm_t comm, cudaStream_t on) {
      Messages messages(*this, comm, on);
      each_segment(borders, size(), [&](std::span<const int64_t> segment) {
        by_node(segment) ? share_own(buffer, segment, messages) : gather_segment(buffer, segment, comm, on);
      });
    };
    const auto share_in_node = [&](ncclComm_t comm, cudaStream_t on) {
      Messages messages(*this, comm, on);
      each_segment(borders, size(), [&](std::span<const int64_t> segment) {
        if (by_node(segment)) share_received(buffer, segment, messages);
      });
    };
    bool any_by_node = false;
    each_segment(borders, size(), [&](std::span<const int64_t> segment) { any_by_node |= by_node(segment); });
    const int64_t bytes = buffer.bytes();
    return by_nccl(any_by_node ? session_->enqueue("all-gather", bytes, stream, share_and_gather, share_in_node)
                               : session_->enqueue("all-gather", bytes, stream, share_and_gather));
  }

  Transfer exchange_shards(const Tensor& send, std::span<const int64_t> borders, std::span<const Tensor> received,
                           std::span<const uint8_t> contributes, Stream& stream) override {
    const bool sends = contributes[static_cast<size_t>(rank())] != 0;
    if (sends) check_borders(send, borders, size());
    check_exchange(borders, received, contributes, rank(), send.dtype);
    if (alone()) return {};
    if (staged_) return staged(staged_->exchange(send, borders, received, contributes, stream));
    return by_nccl(session_->enqueue("exchange", send.bytes(), stream, [&](ncclComm_t comm, cudaStream_t on) {
      Messages messages(*this, comm, on);
      if (sends) traffic().receive(job_rank(rank()), shard_range(send, borders, rank()).bytes);
      for (int peer = 0; peer < size(); ++peer) {
        if (peer == rank()) continue;
        const Tensor& place = received[static_cast<size_t>(peer)];
        if (contributes[static_cast<size_t>(peer)] != 0 && !place.empty()) {
          messages.receive({place.data, place.bytes()}, peer);
        }
        if (sends) messages.send(shard_range(send, borders, peer), peer);
      }
    }));
  }

  Transfer send_and_receive(std::span<const Message> sends, std::span<const Message> receives,
                            Stream& stream) override {
    if (staged_) return staged(staged_->send_and_receive(sends, receives, stream));
    int64_t bytes = 0;
    for (const Message& message : sends) bytes += message.data.bytes();
    return by_nccl(session_->enqueue("exchange", bytes, stream, [&](ncclComm_t comm, cudaStream_t on) {
      Messages messages(*this, comm, on);
      for (const Message& m : receives) messages.receive({m.data.data, m.data.bytes()}, m.rank);
      for (const Message& m : sends) messages.send({m.data.data, m.data.bytes()}, m.rank);
    }));
  }

  bool sums_on_device() const override { return alone() || (session_ != nullptr && !is_group()); }
  Transfer sum_on_device(const Tensor& integers, Stream& stream) override {
    LLMTRAIN_CHECK(sums_on_device() && integers.dtype == DType::i64, "integers that NCCL can add");
    if (alone()) return {};
    return by_nccl(session_->enqueue("sum", integers.bytes(), stream, [&](ncclComm_t comm, cudaStream_t on) {
      ncclAllReduce(integers.data, integers.data, static_cast<size_t>(integers.numel()), ncclInt64, ncclSum, comm, on);
    }));
  }

 private:
  /// Messages of one group of NCCL's calls, which are counted.
  class Messages {
   public:
    Messages(const GpuCommunicator& ranks, ncclComm_t comm, cudaStream_t on) : ranks_(ranks), comm_(comm), on_(on) {}

    void send(const ShardRange& data, int to) {
      if (data.bytes == 0) return;
      const int peer = ranks_.job_rank(to);
      ncclSend(data.data, static_cast<size_t>(data.bytes), ncclUint8, peer, comm_, on_);
      traffic().send(peer, data.bytes);
      calls_.add(peer);
    }
    void receive(const ShardRange& place, int from) {
      if (place.bytes == 0) return;
      const int peer = ranks_.job_rank(from);
      ncclRecv(place.data, static_cast<size_t>(place.bytes), ncclUint8, peer, comm_, on_);
      traffic().receive(peer, place.bytes);
      calls_.add(peer);
    }

   private:
    const GpuCommunicator& ranks_;
    ncclComm_t comm_;
    cudaStream_t on_;
    RequestCount calls_;  // NCCL runs the calls of a group together, and one group after the other
  };

  /// True if there are no other ranks, and NCCL is not tried without them.
  bool alone() const { return size() == 1 && (!session_ || is_group()); }
  bool is_group() const { return !job_ranks_.empty(); }
  NodeGrid grid() const { return {size(), std::max(ranks_per_node(), 1)}; }
  /// Calls visit(rank) for the other ranks of this node.
  template <class Visit>
  void each_neighbour(const Visit& visit) const {
    const int64_t node = grid().node_of(rank()), first = grid().first_rank(node);
    for (int64_t r = first; r < first + grid().size_of(node); ++r) {
      if (r != rank()) visit(static_cast<int>(r));
    }
  }
  /// Calls visit(owner, speaker) for the ranks of other nodes: `speaker` is the rank of this node to which they send.
  template <class Visit>
  void each_far_owner(const Visit& visit) const {
    const int64_t node = grid().node_of(rank());
    for (int owner = 0; owner < size(); ++owner) {
      if (grid().node_of(owner) != node) visit(owner, static_cast<int>(grid().speaker(node, owner)));
    }
  }
  /// Calls visit(speaker) for the rank of each other node to which this one sends.
  template <class Visit>
  void each_far_speaker(const Visit& visit) const {
    const int64_t own = grid().node_of(rank());
    for (int64_t node = 0; node < grid().nodes(); ++node) {
      if (node != own) visit(static_cast<int>(grid().speaker(node, rank())));
    }
  }
  std::vector<int> first_peers() const {
    std::vector<int> peers;
    if (!grid().has_levels() || size() <= max_all_to_all) {
      for (int r = 0; r < size(); ++r) {
        if (r != rank() || size() == 1) peers.push_back(r);
      }
      return peers;
    }
    each_neighbour([&](int r) { peers.push_back(r); });
    each_far_speaker([&](int r) { peers.push_back(r); });
    each_far_owner([&](int owner, int speaker) {
      if (speaker == rank()) peers.push_back(owner);
    });
    std::ranges::sort(peers);
    peers.erase(std::ranges::unique(peers).begin(), peers.end());
    return peers;
  }

  /// The first part of a gather by node: this rank's shard goes to its node, and once to each other node.
  void share_own(const Tensor& buffer, std::span<const int64_t> borders, Messages& messages) const {
    const ShardRange mine = shard_range(buffer, borders, rank());
    each_neighbour([&](int r) {
      messages.send(mine, r);
      messages.receive(shard_range(buffer, borders, r), r);
    });
    each_far_speaker([&](int r) { messages.send(mine, r); });
    each_far_owner([&](int owner, int speaker) {
      if (speaker == rank()) messages.receive(shard_range(buffer, borders, owner), owner);
    });
  }
  /// The second part: what this rank has received from other nodes goes to its node.
  void share_received(const Tensor& buffer, std::span<const int64_t> borders, Messages& messages) const {
    each_far_owner([&](int owner, int speaker) {
      const ShardRange shard = shard_range(buffer, borders, owner);
      if (speaker == rank()) {
        each_neighbour([&](int r) { messages.send(shard, r); });
      } else {
        messages.receive(shard, speaker);
      }
    });
  }
  bool are_equal(const Tensor& buffer, std::span<const int64_t> borders) const {
    const int64_t first = shard_range(buffer, borders, 0).bytes;
    bool equal = true;
    for (int r = 1; r < size(); ++r) equal = equal && shard_range(buffer, borders, r).bytes == first;
    return equal;
  }
  void gather_segment(const Tensor& buffer, std::span<const int64_t> borders, ncclComm_t comm, cudaStream_t on) const {
    count_ring(buffer, borders);
    const ShardRange mine = shard_range(buffer, borders, rank());
    if (are_equal(buffer, borders)) {
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
  void count_ring(const Tensor& buffer, std::span<const int64_t> borders) const {
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
  std::shared_ptr<NcclSession> session_;
};

}  // namespace

std::unique_ptr<Communicator> make_communicator() { return std::make_unique<GpuCommunicator>(); }

std::string transfer_library() {
  int found = NCCL_VERSION_CODE;
  ncclGetVersion(&found);
  return nccl_versions(NCCL_VERSION_CODE, found);
}

}  // namespace llmtrain
