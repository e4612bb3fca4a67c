#pragma once
// Items of work (pieces of files) shared out to ranks and threads. Each rank takes a contiguous range, so that results
// joined in rank order are in item order, whatever the rank count. Ranks meet every half second: nobody waits long
// inside a collective while others work, and all know how far the job is.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "core/activity.hpp"
#include "core/error.hpp"
#include "core/parallel_for.hpp"
#include "core/stop_request.hpp"
#include "parallel/communicator.hpp"
#include "parallel/runtime.hpp"
#include "parallel/worker_threads.hpp"

namespace llmtrain {

struct ItemRange {
  int64_t begin;
  int64_t end;
};

inline ItemRange own_items(int64_t items, const Communicator& communicator) {
  return {items * communicator.rank() / communicator.size(), items * (communicator.rank() + 1) / communicator.size()};
}

/// On every rank, `code` agreed.
[[noreturn]] inline void stop_reading(int64_t code) {
  throw UserError(ExitCode::stopped,
                  "stopped by " + stop_reason(code) + " while the data were read; the same command begins again");
}

/// Collective. process(item) -> Result runs on threads for the items [begin, end) of this rank, collect(item, result)
/// on the calling thread in item order. After a UserError on any rank, or a wish to stop, all stop, and every rank
/// throws. `progress` gets the share of all ranks' items that is done, on rank 0.
template <class Result, class Process, class Collect>
void share_work(Communicator& communicator, ItemRange own, const Process& process, const Collect& collect,
                const std::function<void(double)>& progress) {
  using Clock = std::chrono::steady_clock;
  const int threads = worker_threads(communicator);
  const int64_t batch = int64_t{2} * threads;
  std::vector<Result> results(static_cast<size_t>(batch));
  std::exception_ptr error;
  int64_t next = own.begin;
  while (true) {
    const Clock::time_point round_end = Clock::now() + std::chrono::milliseconds(500);
    try {
      while (next < own.end && !error && Clock::now() < round_end) {
        const size_t n = static_cast<size_t>(std::min(batch, own.end - next));
        parallel_for(n, threads, [&](size_t i) {
          results[i] = process(next + static_cast<int64_t>(i));
          note_progress();
        });
        for (size_t i = 0; i < n; ++i) collect(next + static_cast<int64_t>(i), results[i]);
        next += static_cast<int64_t>(n);
      }
    } catch (const UserError&) {
      error = std::current_exception();
    }
    int64_t state[] = {error ? 1 : 0, next - own.begin, own.end - own.begin};
    int64_t stop[] = {look_for_stop()};
    communicator.sum(state);
    communicator.maximum(stop);
    if (state[0] > 0) {
      raise_together(communicator, [&] {
        if (error) std::rethrow_exception(error);
      });
    }
    if (communicator.rank() == 0 && progress && state[2] > 0) {
      progress(static_cast<double>(state[1]) / static_cast<double>(state[2]));
    }
    if (state[1] == state[2]) return;
    if (stop[0] > 0) stop_reading(stop[0]);
  }
}

}  // namespace llmtrain
