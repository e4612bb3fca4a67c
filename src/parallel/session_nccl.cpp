#include "parallel/session_nccl.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "core/exact_sum.hpp"
#include "parallel/job/failure.hpp"

namespace llmtrain {

namespace {

constexpr auto start_limit = std::chrono::minutes(10);
constexpr auto end_limit = std::chrono::seconds(10);
constexpr auto lock_limit = std::chrono::seconds(1);
constexpr auto abort_limit = std::chrono::seconds(15);  ///< longer than an aborting thread needs to end the process
// Limit of transfers in flight, so that the host waits here, where it sees errors, rather than in a call of CUDA whose
// queue is full. It exceeds the number of units of most models, since the weights of all may be in flight at once.
constexpr size_t max_in_flight = 64;

std::atomic<NcclSession*> session_of_process = nullptr;

void abort_session() {
  if (NcclSession* session = session_of_process.load()) session->abort();
}

}  // namespace

NcclSession::NcclSession(int size, int rank, const ncclUniqueId& id, std::span<const int> peers) {
  const CollectiveScope scope("start of NCCL", 0);
  for (size_t i = 0; i < 2 * max_in_flight; ++i) flights_.push_back(std::make_shared<Flight>());
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const Clock::time_point until = Clock::now() + start_limit;
  wait_until_done(ncclCommInitRankConfig(&comm_, size, id, rank, &config), "start of NCCL", until);
  connect(size, rank, peers, until);
  session_of_process = this;
  set_abort_action(abort_session);
  set_wait_observer(this);
}

/// Connects the peers. NCCL connects to a peer, and allocates buffers, at the first transfer of a kind, of an algorithm
/// (which the size decides) and between two ranks. All kinds run once here, so that their memory is allocated before
/// free memory is measured, and NCCL's kernels are loaded.
void NcclSession::connect(int size, int rank, std::span<const int> peers, Clock::time_point until) {
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
    for (const int peer : peers) {
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

}  // namespace llmtrain
