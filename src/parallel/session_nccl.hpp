#pragma once
// NCCL's communicator of a job, and its transfers.
//
// All NCCL transfers run on one separate stream, in the order of the calls, each after the work that the caller's
// stream held at that time (`ready`), so that they overlap with its later work; a user of a transfer makes its stream
// wait for `done`. There is one communicator and one stream, because kernels of two communicators wait for peers
// concurrently and may take each other's multiprocessors, differently on each rank: NCCL does not support that. A
// gather does not wait for the reduction that starts at the same time, since the model starts the gather first
// (Decoder::backward).

#include <cuda_runtime.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/activity.hpp"
#include "device/device.hpp"

namespace llmtrain {

inline cudaStream_t native(const Stream& stream) { return static_cast<cudaStream_t>(stream.native()); }

/// A transfer that may be in progress.
struct Flight {
  Event ready, done;
  const char* operation = "";
  int64_t bytes = 0;
  uint64_t sequence = 0;
};

/// NCCL's communicator and the transfers in flight. Calls do not block (blocking = 0): NCCL connects and launches on
/// its own threads, so that a waiting rank can see errors and abort.
class NcclSession final : public WaitObserver {
  using Clock = std::chrono::steady_clock;

 public:
  /// `peers`: ranks to which it connects at the start.
  NcclSession(int size, int rank, const ncclUniqueId& id, std::span<const int> peers);
  ~NcclSession() override;
  NcclSession(const NcclSession&) = delete;
  NcclSession& operator=(const NcclSession&) = delete;

  /// Runs NCCL calls on the separate stream as one group, or as several groups one after the other, after all current
  /// work of `stream`.
  template <class... Calls>
  std::shared_ptr<Flight> enqueue(const char* operation, int64_t bytes, Stream& stream, const Calls&... calls) {
    std::shared_ptr<Flight> flight = take(operation, bytes);
    flight->ready.record(stream);
    flight->ready.wait(stream_);
    const CollectiveScope scope(operation, bytes, flight->sequence);  // the first transfers connect to their peers
    (start(operation, calls), ...);
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
  void connect(int size, int rank, std::span<const int> peers, Clock::time_point until);
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

}  // namespace llmtrain
