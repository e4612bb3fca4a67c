// Data communication of GPUs: NCCL, bootstrapped by the MPI control communicator, where each rank has a GPU of its own;
// else, as in tests, staged_transport.hpp.
//
// All NCCL transfers run on one separate stream, in the order of the calls, each after the work that the caller's
// stream held at that time (`ready`), so that they overlap with its later work; a user of a transfer makes its stream
// wait for `done`. There is one communicator and one stream, because kernels of two communicators wait for peers
// concurrently and may take each other's multiprocessors, differently on each rank: NCCL does not support that. A
// gather does not wait for the reduction that starts at the same time, since the model starts the gather first
// (Decoder::backward).
//
// With LLMTRAIN_NCCL=always a job of one rank opens NCCL, too, so that it can be tried on a machine with one GPU.
//
// NCCL never adds floating-point numbers here: it moves bytes, and this program adds them, in the order of groups. NCCL
// adds integers, whose sums do not depend on the order.

#include <fmt/format.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "core/activity.hpp"
#include "core/error.hpp"
#include "core/exact_sum.hpp"
#include "core/machine.hpp"
#include "parallel/control_communicator.hpp"
#include "parallel/job/failure.hpp"
#include "parallel/shard_messages.hpp"
#include "parallel/staged_transport.hpp"
#include "parallel/traffic.hpp"

namespace llmtrain {

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto start_limit = std::chrono::minutes(10);
constexpr auto end_limit = std::chrono::seconds(10);
constexpr auto lock_limit = std::chrono::seconds(1);
constexpr auto abort_limit = std::chrono::seconds(15);  ///< longer than an aborting thread needs to end the process
// Limit of transfers in flight, so that the host waits here, where it sees errors, rather than in a call of CUDA whose
// queue is full. It exceeds the number of units of most models, since the weights of all may be in flight at once.
constexpr size_t max_in_flight = 64;

cudaStream_t native(const Stream& stream) { return static_cast<cudaStream_t>(stream.native()); }

struct Flight {
  Event ready, done;
  const char* operation = "";
  int64_t bytes = 0;
  uint64_t sequence = 0;
};

/// NCCL's communicator and the transfers in flight. Calls do not block (blocking = 0): NCCL connects and launches on
/// its own threads, so that a waiting rank can see errors and abort.
class NcclSession final : public WaitObserver {
 public:
  NcclSession(int size, int rank, const ncclUniqueId& id);
  ~NcclSession() override;
  NcclSession(const NcclSession&) = delete;
  NcclSession& operator=(const NcclSession&) = delete;

  /// Runs NCCL calls on the separate stream as one group, after all current work of `stream`.
  template <class Calls>
  std::shared_ptr<Flight> enqueue(const char* operation, int64_t bytes, Stream& stream, const Calls& calls) {
    std::shared_ptr<Flight> flight = take(operation, bytes);
    flight->ready.record(stream);
    flight->ready.wait(stream_);
    const CollectiveScope scope(operation, bytes, flight->sequence);  // the first transfers connect to their peers
    start(operation, calls);
    flight->done.record(stream_);
    in_flight_.push_back(flight);
    return flight;
  }

  /// Throws an asynchronous error of NCCL, if there is one.
  void poll();
  /// Ends kernels and calls that wait for peers; callable from any thread. No transfer is possible afterwards.
  void abort();

  void waiting() override;
  void waited() noexcept override { scope_.reset(); }

 private:
  /// Submits the calls as one group and returns when NCCL has launched them.
  template <class Calls>
  void start(const char* operation, const Calls& calls, Clock::time_point until = Clock::time_point::max()) {
    ncclResult_t code = ncclSuccess;
    {
      const std::unique_lock lock = usable();
      ncclGroupStart();
      calls(comm_, native(stream_));
      code = ncclGroupEnd();  // returns the calls' errors as well
    }
    wait_until_done(code, operation, until);
  }
  void connect(int size, int rank, Clock::time_point until);
  std::shared_ptr<Flight> take(const char* operation, int64_t bytes);
  void forget_arrived();
  /// Waits until NCCL has completed a nonblocking call.
  void wait_until_done(ncclResult_t code, const char* what, Clock::time_point until = Clock::time_point::max());
  ncclResult_t state();
  [[noreturn]] void fail(ncclResult_t code, const std::string& what);
  /// Locks the communicator. Throws if it was aborted.
  std::unique_lock<std::timed_mutex> usable();
  bool finalize_without_error();

  std::timed_mutex mutex_;                       ///< guards comm_ and NCCL's calls
  ncclComm_t comm_ = nullptr;                    ///< null after abort()
  std::atomic<std::thread::id> failed_on_ = {};  ///< thread on which fail() has thrown
  Stream stream_;
  std::vector<std::shared_ptr<Flight>> flights_;  ///< all flights ever created; those without another owner are free
  std::deque<std::shared_ptr<Flight>> in_flight_;
  std::optional<CollectiveMark> scope_;  ///< no profiler span: a recorder would synchronize the stream at its start
};

std::atomic<NcclSession*> session_of_process = nullptr;

void abort_session() {
  if (NcclSession* session = session_of_process.load()) session->abort();
}

NcclSession::NcclSession(int size, int rank, const ncclUniqueId& id) {
  const CollectiveScope scope("start of NCCL", 0);
  for (size_t i = 0; i < 2 * max_in_flight; ++i) flights_.push_back(std::make_shared<Flight>());
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const Clock::time_point until = Clock::now() + start_limit;
  wait_until_done(ncclCommInitRankConfig(&comm_, size, id, rank, &config), "start of NCCL", until);
  connect(size, rank, until);
  session_of_process = this;
  set_abort_action(abort_session);
  set_wait_observer(this);
}

/// Connects all peers. NCCL connects to a peer, and allocates buffers, at the first transfer of a kind, of an algorithm
/// (which the size decides) and between two ranks. All kinds run once here, so that their memory is allocated before
/// free memory is measured, and NCCL's kernels are loaded.
void NcclSession::connect(int size, int rank, Clock::time_point until) {
  constexpr size_t largest = size_t{32} << 20, small = 1024;
  const auto ranks = static_cast<size_t>(size), mine = static_cast<size_t>(rank);
  const DeviceBuffer memory(static_cast<int64_t>(largest + ranks * small));
  auto* all = static_cast<char*>(memory.data());
  Event done;
  const auto transfer = [&](const auto& calls) {
    start("start of NCCL", calls, until);
    done.record(stream_);
    while (!done.reached()) {
      poll();
      if (Clock::now() > until) fail(ncclInProgress, "start of NCCL, which has taken too long,");
      std::this_thread::yield();
    }
  };
  for (const size_t bytes : {size_t{1} << 14, size_t{1} << 20, largest}) {
    const size_t part = bytes / ranks + 1;
    transfer(
        [&](ncclComm_t comm, cudaStream_t on) { ncclAllGather(all + mine * part, all, part, ncclUint8, comm, on); });
  }
  transfer([&](ncclComm_t comm, cudaStream_t on) {
    for (int owner = 0; owner < size; ++owner) ncclBroadcast(all, all, small, ncclUint8, owner, comm, on);
  });
  transfer([&](ncclComm_t comm, cudaStream_t on) {
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank && size > 1) continue;
      ncclSend(all + mine * small, small, ncclUint8, peer, comm, on);
      ncclRecv(all + largest + static_cast<size_t>(peer) * small, small, ncclUint8, peer, comm, on);
    }
  });
  transfer([&](ncclComm_t comm, cudaStream_t on) {
    ncclAllReduce(all, all, 2 * static_cast<size_t>(ExactSum::integer_count), ncclInt64, ncclSum, comm, on);
  });
}

NcclSession::~NcclSession() {
  set_wait_observer(nullptr);
  set_abort_action(nullptr);
  session_of_process = nullptr;
  if (comm_ == nullptr) return;
  if (std::uncaught_exceptions() == 0 && finalize_without_error()) {
    ncclCommDestroy(comm_);
  } else {
    ncclCommAbort(comm_);  // ncclCommDestroy would wait for lost peers
  }
}

/// True if all transfers complete, and all peers finalize, soon.
bool NcclSession::finalize_without_error() {
  try {
    const Clock::time_point until = Clock::now() + end_limit;
    for (const auto& flight : in_flight_) {
      while (!flight->done.reached()) {
        if (Clock::now() > until) return false;
        std::this_thread::yield();
      }
    }
    wait_until_done(ncclCommFinalize(comm_), "end of NCCL", until);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

ncclResult_t NcclSession::state() {
  const std::unique_lock lock = usable();
  ncclResult_t error = ncclSuccess;
  const ncclResult_t code = ncclCommGetAsyncError(comm_, &error);
  return code == ncclSuccess ? error : code;
}

void NcclSession::wait_until_done(ncclResult_t code, const char* what, Clock::time_point until) {
  while (code == ncclInProgress) {
    if (Clock::now() > until) fail(code, fmt::format("{}, which has taken too long,", what));
    std::this_thread::yield();
    code = state();
  }
  if (code != ncclSuccess) fail(code, what);
}

void NcclSession::poll() {
  const ncclResult_t code = state();
  if (code != ncclSuccess && code != ncclInProgress) fail(code, "a transfer between GPUs");
}

/// Aborts first, since kernels that wait for peers would block the release of device memory.
void NcclSession::fail(ncclResult_t code, const std::string& what) {
  failed_on_ = std::this_thread::get_id();
  const std::string text = fmt::format("{} failed: {} ({}); set NCCL_DEBUG=INFO in the environment for details{}", what,
                                       ncclGetErrorString(code), ncclGetLastError(comm_), device_fault());
  abort();
  if (code == ncclRemoteError) throw UserError(ExitCode::peer_failed, text + "; another rank, or the network, is lost");
  if (code == ncclInProgress) {  // the time limit has passed
    throw UserError(ExitCode::peer_failed, text + "; another rank, the network or this GPU does not answer");
  }
  throw Error(text);
}

void NcclSession::abort() {
  // A thread that is blocked inside NCCL keeps the lock; only the abort frees it.
  std::unique_lock lock(mutex_, lock_limit);
  if (comm_ != nullptr) ncclCommAbort(std::exchange(comm_, nullptr));
}

std::unique_lock<std::timed_mutex> NcclSession::usable() {
  std::unique_lock lock(mutex_);
  const Clock::time_point until = Clock::now() + abort_limit;
  while (comm_ == nullptr) {
    // Unless this thread met the error, another one ends the job: an error here would hide its message.
    const bool own = failed_on_.load() == std::this_thread::get_id();
    if (own || Clock::now() > until) throw Error("NCCL is used after it was aborted");
    lock.unlock();
    std::this_thread::sleep_for(lock_limit);
    lock.lock();
  }
  return lock;
}

void NcclSession::forget_arrived() {
  while (!in_flight_.empty() && in_flight_.front()->done.reached()) in_flight_.pop_front();
}

std::shared_ptr<Flight> NcclSession::take(const char* operation, int64_t bytes) {
  poll();
  forget_arrived();
  if (in_flight_.size() >= max_in_flight) {
    const std::shared_ptr<Flight> oldest = in_flight_.front();
    oldest->done.synchronize();
    forget_arrived();
  }
  auto free = std::find_if(flights_.begin(), flights_.end(), [](const auto& f) { return f.use_count() == 1; });
  if (free == flights_.end()) free = flights_.insert(flights_.end(), std::make_shared<Flight>());
  Flight& flight = **free;
  flight.operation = operation;
  flight.bytes = bytes;
  flight.sequence = begin_collective();
  return *free;
}

/// Reports a wait for the device. If a transfer has started on the device, this rank waits for peers; else for its own
/// kernels, which may be stuck.
void NcclSession::waiting() {
  poll();
  forget_arrived();
  const Flight* oldest = in_flight_.empty() ? nullptr : in_flight_.front().get();
  if (oldest == nullptr || !oldest->ready.reached()) {
    scope_.reset();
  } else if (scope_ ? activity().collective.sequence.load() != oldest->sequence
                    : !activity().collective.inside.load()) {
    scope_.reset();
    scope_.emplace(oldest->operation, oldest->bytes, oldest->sequence);
  }
}

}  // namespace

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
      RequestCount calls;  // NCCL runs the calls of a group together, and one group after the other
      if (sends) traffic().receive(rank(), shard_range(send, borders, rank()).bytes);
      for (int peer = 0; peer < size(); ++peer) {
        if (peer == rank()) continue;
        const Tensor& place = received[static_cast<size_t>(peer)];
        if (contributes[static_cast<size_t>(peer)] != 0 && !place.empty() && place.numel() > 0) {
          ncclRecv(place.data, static_cast<size_t>(place.bytes()), ncclUint8, peer, comm, on);
          traffic().receive(peer, place.bytes());
          calls.add(peer);
        }
        if (!sends) continue;
        const ShardRange shard = shard_range(send, borders, peer);
        if (shard.bytes == 0) continue;
        ncclSend(shard.data, static_cast<size_t>(shard.bytes), ncclUint8, peer, comm, on);
        traffic().send(peer, shard.bytes);
        calls.add(peer);
      }
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
