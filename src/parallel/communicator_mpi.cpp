// Data communication over MPI. Ranks of a node read each other's buffers directly where these lie in shared memory;
// between nodes, and for other buffers, nonblocking point-to-point messages use a separate communicator.

#include <algorithm>
#include <exception>
#include <optional>
#include <thread>

#include "core/activity.hpp"
#include "parallel/communicator.hpp"
#include "parallel/control_communicator.hpp"
#include "parallel/mpi_transfer.hpp"
#include "parallel/node_grid.hpp"
#include "parallel/node_memory.hpp"
#include "parallel/shard_messages.hpp"
#include "parallel/traffic.hpp"

namespace llmtrain {

struct Transfer::State {
  /// Bytes of a buffer that another rank of the node offers.
  struct Read {
    int rank;
    int member;
    int64_t offset, bytes;
    void* to;         ///< null: the data is used in the peer's memory
    uint64_t number;  ///< of the offer on the board
    const char* from = nullptr;
  };

  /// States of completed transfers, for reuse: a step allocates none. This object outlives all transfers, as does the
  /// node's memory.
  struct Idle {
    std::vector<std::unique_ptr<State>> states;
    size_t made = 0;
  };

  /// Transfers in progress, of any communicator, whose messages this rank offers to its node.
  static inline std::vector<State*> forwarding;
  /// Offers what has arrived.
  static void forward();

  State(MPI_Comm comm, std::span<const int> job_ranks, NodeMemory& node_memory, Idle& idle_states)
      : requests(comm, max_message_bytes, job_ranks), node(node_memory), idle(idle_states) {}

  /// Drops a transfer that was not waited for: the others need not wait for this rank.
  ~State() {
    std::erase(forwarding, this);
    release();
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void begin(const char* name, int64_t buffer_bytes, bool counted);
  /// Ends the transfer.
  static void retire(std::unique_ptr<State> state) noexcept;

  bool arrived();
  void take(Stream& stream);
  void release();
  /// Counts the traffic of those that read all of their offers.
  void count_reads() const {
    for (const Read& read : reads) traffic().receive(requests.job_rank(read.rank), read.bytes);
  }
  bool is_read() const;
  /// Polls until condition(); visible to the watchdog.
  template <class Condition>
  void wait_until(const Condition& condition, const Meanwhile& meanwhile) const;

  MpiRequests requests;
  NodeMemory& node;
  Idle& idle;
  const char* operation = "";
  int64_t bytes = 0;  ///< of the whole buffer
  uint64_t sequence = 0;
  uint64_t number = 0;     ///< number of the transfer on the board; 0: not in shared memory
  uint64_t forwarded = 0;  ///< number of the offer of this buffer after messages have arrived in it, if there is one
  const void* buffer = nullptr;
  std::vector<Read> reads;
  bool taken = false, released = false;
};

/// `counted`: false for what begins while other transfers are awaited, not in the same order on every rank.
void Transfer::State::begin(const char* name, int64_t buffer_bytes, bool counted) {
  operation = name;
  bytes = buffer_bytes;
  sequence = counted ? begin_collective() : activity().collectives.load();
  number = forwarded = 0;
  reads.clear();
  taken = released = false;
}

void Transfer::State::retire(std::unique_ptr<State> state) noexcept {
  if (!state) return;
  state->release();
  if (!state->requests.empty() || std::ranges::find(forwarding, state.get()) != forwarding.end()) return;  // unfinished
  std::vector<std::unique_ptr<State>>& others = state->idle.states;
  others.push_back(std::move(state));  // never allocates, see MpiCommunicator::begin()
}

void Transfer::State::forward() {
  std::erase_if(forwarding, [](State* state) {
    if (!state->requests.test() || !state->node.can_offer(state->forwarded)) return false;
    state->node.offer(state->forwarded, state->buffer);
    return true;
  });
}

bool Transfer::State::arrived() {
  forward();
  for (Read& read : reads) {
    if (read.from == nullptr) read.from = node.offered(read.number, read.member);
  }
  return requests.test() && std::all_of(reads.begin(), reads.end(), [](const Read& r) { return r.from != nullptr; });
}

/// Copies the offers that have a destination, and releases them.
void Transfer::State::take(Stream& stream) {
  taken = true;
  bool copied = !reads.empty();
  for (const Read& read : reads) {
    copied = copied && read.to != nullptr;
    if (read.to != nullptr) copy_on_device(read.to, read.from + read.offset, read.bytes, stream);
  }
  if (copied) release();
}

void Transfer::State::release() {
  if (released) return;
  released = true;
  for (const Read& read : reads) node.release(read.number, read.member);
}

bool Transfer::State::is_read() const {
  if (number != 0 && node.is_read(number)) return true;
  if (forwarded == 0) return false;
  forward();
  return std::ranges::find(forwarding, this) != forwarding.end() || node.is_read(forwarded);
}

template <class Condition>
void Transfer::State::wait_until(const Condition& condition, const Meanwhile& meanwhile) const {
  // spins briefly for a peer that is about to answer, since a yield takes longer than the answer
  constexpr int looks = 200;
  for (int looked = 0; !condition(); looked = std::min(looked + 1, looks)) {
    forward();
    if (meanwhile) meanwhile();
    if (looked == looks) std::this_thread::yield();
  }
}

namespace {

/// Marks a wait as a collective for the watchdog, unless it happens inside another one.
class WaitScope {
 public:
  explicit WaitScope(const Transfer::State& transfer) {
    if (!activity().collective.inside.load()) scope_.emplace(transfer.operation, transfer.bytes, transfer.sequence);
  }

 private:
  std::optional<CollectiveScope> scope_;
};

}  // namespace

Transfer::Transfer() = default;
Transfer::~Transfer() { State::retire(std::move(state_)); }
Transfer::Transfer(Transfer&&) noexcept = default;
Transfer& Transfer::operator=(Transfer&& other) noexcept {
  if (this == &other) return *this;
  State::retire(std::move(state_));
  state_ = std::move(other.state_);
  return *this;
}
Transfer::Transfer(std::unique_ptr<State> state) : state_(std::move(state)) {}

void Transfer::wait(Stream& stream, const Meanwhile& meanwhile) {
  if (!state_ || state_->taken) return;
  const WaitScope scope(*state_);
  // Ranks of a node wait for each other, those of a group also for other groups: none of these may stop in MPI.
  const bool waits = state_->node.in_use() || state_->requests.is_of_group() || !State::forwarding.empty();
  if (state_->reads.empty() && !waits) state_->requests.wait();
  state_->wait_until([this] { return state_->arrived(); }, meanwhile);
  State::forward();  // what has just arrived; the node need not wait for the next poll
  state_->take(stream);
}

bool Transfer::pending() const { return state_ && !state_->taken && !state_->arrived(); }

const void* Transfer::contribution(int rank) const {
  if (!state_) return nullptr;
  for (const State::Read& read : state_->reads) {
    if (read.rank == rank) return read.from + read.offset;
  }
  return nullptr;
}

void Transfer::release() {
  if (state_) state_->release();
}

void Transfer::finish(Stream& stream, const Meanwhile& meanwhile) {
  if (!state_) return;
  wait(stream, meanwhile);
  release();
  if (is_read()) {
    const WaitScope scope(*state_);
    state_->wait_until([this] { return !is_read(); }, meanwhile);
  }
  State::retire(std::move(state_));
}

bool Transfer::is_read() const { return state_ && state_->is_read(); }

namespace {

class MpiCommunicator final : public ControlCommunicator {
 public:
  MpiCommunicator()
      : device_(mpi_duplicate(MPI_COMM_WORLD)), node_(device_, node_communicator(device_), ranks_per_node() > 1) {}
  MpiCommunicator(const MpiCommunicator& job, int number)
      : ControlCommunicator(job, number),
        device_(mpi_duplicate(host())),
        node_(device_, node_communicator_of_group(device_), ranks_per_node() > 1) {}
  ~MpiCommunicator() override { MPI_Comm_free(&device_); }
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  std::unique_ptr<Communicator> make_group(int number) override {
    return std::make_unique<MpiCommunicator>(*this, number);
  }
  int sharing_ranks() const override { return node_size(); }
  int adding_ranks_per_node() const override { return ranks_per_node(); }
  std::string sharing_refusal(int64_t bytes) override {
    finish_forwarding();
    const std::vector<std::string> all = gather_all(node_.refusal(bytes));
    const auto refused = std::find_if(all.begin(), all.end(), [](const std::string& text) { return !text.empty(); });
    return refused == all.end() ? "" : *refused;
  }
  std::shared_ptr<void> allocate_shared(int64_t bytes) override {
    finish_forwarding();
    return node_.allocate(bytes);
  }
  bool reads_directly(int other) const override {
    return other != rank() && node_.in_use() && node_.member(other) >= 0;
  }

  Transfer all_gather(const Tensor& buffer, std::span<const int64_t> borders, Stream& /*stream*/) override {
    check_borders(buffer, borders, size());
    auto state = begin("all-gather", buffer.bytes());
    const bool shared = node_.holds(buffer.data);
    if (shared && grid().has_levels()) return gather_by_node(std::move(state), buffer, borders);
    if (shared) number(*state);
    each_segment(borders, size(), [&](std::span<const int64_t> segment) {
      for (int i = 1; shared && i < size(); ++i) {
        const int from = (rank() + size() - i) % size();
        if (node_.member(from) < 0) continue;
        const ShardRange r = shard_range(buffer, segment, from);
        const int64_t offset = static_cast<char*>(r.data) - static_cast<char*>(buffer.data);
        state->reads.push_back({from, node_.member(from), offset, r.bytes, r.data, state->number});
      }
    });
    if (shared) offer(*state, buffer.data);
    state->count_reads();
    each_segment(borders, size(), [&](std::span<const int64_t> segment) {
      begin_gather(state->requests, buffer, segment, rank(),
                   [&](int other) { return !shared || node_.member(other) < 0; });
    });
    return Transfer(std::move(state));
  }

  Transfer exchange_shards(const Tensor& send, std::span<const int64_t> borders, std::span<const Tensor> received,
                           std::span<const uint8_t> contributes, Stream& /*stream*/) override {
    const bool sends = contributes[static_cast<size_t>(rank())] != 0;
    if (sends) check_borders(send, borders, size());
    by_message_.assign(contributes.begin(), contributes.end());
    for (int r = 0; r < size(); ++r) {
      if (reads_directly(r)) by_message_[static_cast<size_t>(r)] = 0;
    }
    check_exchange(borders, received, by_message_, rank(), send.dtype);
    auto state = begin("exchange", send.bytes());
    const size_t me = static_cast<size_t>(rank());
    const int64_t width = static_cast<int64_t>(size_of(send.dtype));
    if (node_.in_use()) number(*state);
    const int64_t offset = borders[me] * width, own_bytes = (borders[me + 1] - borders[me]) * width;
    for (int i = 1; i < size(); ++i) {
      const int from = (rank() + size() - i) % size();
      if (contributes[static_cast<size_t>(from)] == 0 || !reads_directly(from)) continue;
      state->reads.push_back({from, node_.member(from), offset, own_bytes, nullptr, state->number});
    }
    if (sends) traffic().receive(job_rank(rank()), own_bytes);
    if (node_.in_use()) offer(*state, sends ? send.data : nullptr);
    state->count_reads();
    begin_exchange(state->requests, send, borders, received, contributes, rank(),
                   [this](int other) { return !reads_directly(other); });
    return Transfer(std::move(state));
  }

  Transfer share_in_node(const Tensor& mine, std::span<const uint8_t> contributes) override {
    auto state = begin("exchange", mine.bytes());
    number(*state);
    for (int other = 0; other < size(); ++other) {
      if (contributes[static_cast<size_t>(other)] == 0 || !reads_directly(other)) continue;
      state->reads.push_back({other, node_.member(other), 0, mine.bytes(), nullptr, state->number});
    }
    offer(*state, contributes[static_cast<size_t>(rank())] != 0 ? mine.data : nullptr);
    return Transfer(std::move(state));
  }

  Transfer send_and_receive(std::span<const Message> sends, std::span<const Message> receives,
                            Stream& /*stream*/) override {
    int64_t bytes = 0;
    for (const Message& message : sends) bytes += message.data.bytes();
    auto state = begin("exchange between nodes", bytes, false);
    begin_messages(state->requests, sends, receives);
    return Transfer(std::move(state));
  }

 protected:
  void finish_forwarding() override {
    if (Transfer::State::forwarding.empty() || std::uncaught_exceptions() > 0) return;
    Transfer::State::forwarding.front()->wait_until([] { return Transfer::State::forwarding.empty(); }, {});
  }

 private:
  NodeGrid grid() const { return {size(), std::max(ranks_per_node(), 1)}; }

  /// The shard of a rank travels once to each other node, to one of its ranks, where the others read it.
  Transfer gather_by_node(std::unique_ptr<Transfer::State> state, const Tensor& buffer,
                          std::span<const int64_t> borders) {
    const int64_t node = grid().node_of(rank());
    number(*state);
    const uint64_t later = node_.next_number();
    bool forwards = false;
    const auto read = [&](int from, const ShardRange& r, uint64_t of_number) {
      const int64_t offset = static_cast<char*>(r.data) - static_cast<char*>(buffer.data);
      state->reads.push_back({from, node_.member(from), offset, r.bytes, r.data, of_number});
    };
    const UnitShards shards(buffer, borders, size(), grid().nodes());
    for (int i = 1; i < size(); ++i) {
      const int owner = (rank() + size() - i) % size();
      const int speaker = static_cast<int>(grid().speaker(node, owner));
      const bool near = grid().node_of(owner) == node;
      if (!near && speaker == rank()) {
        shards.receive(state->requests, owner, parts_);
        forwards = true;
        continue;
      }
      each_segment(borders, size(), [&](std::span<const int64_t> segment) {
        read(near ? owner : speaker, shard_range(buffer, segment, owner), near ? state->number : later);
      });
    }
    offer(*state, buffer.data);
    state->count_reads();
    for (int64_t i = 1; i < grid().nodes(); ++i) {
      const int to = static_cast<int>(grid().speaker((node + i) % grid().nodes(), rank()));
      shards.send(state->requests, rank(), to, parts_);
    }
    if (forwards && node_size() > 1) {
      state->forwarded = later;
      state->buffer = buffer.data;
      Transfer::State::forwarding.push_back(state.get());
    }
    return Transfer(std::move(state));
  }

  std::unique_ptr<Transfer::State> begin(const char* operation, int64_t bytes, bool counted = true) {
    std::unique_ptr<Transfer::State> state;
    if (idle_.states.empty()) {
      state = std::make_unique<Transfer::State>(device_, job_ranks_, node_, idle_);
      idle_.states.reserve(++idle_.made);
    } else {
      state = std::move(idle_.states.back());
      idle_.states.pop_back();
    }
    state->begin(operation, bytes, counted);
    return state;
  }
  /// Numbers the transfer on the board, on every rank of the node.
  void number(Transfer::State& state) { state.number = node_.next_number(); }
  /// Offers the address of `data` if this rank has some.
  void offer(Transfer::State& state, const void* data) {
    if (!node_.can_offer(state.number)) {
      const CollectiveScope scope(state.operation, state.bytes, state.sequence);
      state.wait_until([&] { return node_.can_offer(state.number); }, {});
    }
    if (data != nullptr) node_.offer(state.number, data);
  }

  MPI_Comm device_;
  NodeMemory node_;
  Transfer::State::Idle idle_;
  std::vector<uint8_t> by_message_;
  std::vector<MpiRequests::Part> parts_;
};

}  // namespace

std::unique_ptr<Communicator> make_communicator() { return std::make_unique<MpiCommunicator>(); }

std::string transfer_library() { return {}; }

}  // namespace llmtrain
