#pragma once
// Items of work (pieces of files) shared out to ranks and threads. Each rank takes a contiguous range, so that results
// joined in rank order are in item order, whatever the rank count. Ranks meet every half second: nobody waits long
// inside a collective while others work, and all know how far the job is.

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "core/error.hpp"
#include "parallel/communicator.hpp"
#include "parallel/runtime.hpp"

namespace llmtrain {

struct ItemRange {
  int64_t begin;
  int64_t end;
};

inline ItemRange own_items(int64_t items, const Communicator& communicator) {
  return {items * communicator.rank() / communicator.size(), items * (communicator.rank() + 1) / communicator.size()};
}

/// Threads this rank may use: OMP_NUM_THREADS, else the cores it is bound to, or its share of the node's.
inline int worker_threads(const Communicator& communicator) {
  if (const char* given = std::getenv("OMP_NUM_THREADS")) {
    const int n = std::atoi(given);
    if (n > 0) return std::min(n, 256);
  }
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t set;
  const int bound = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : cores;
  const int share = bound < cores ? bound : cores / communicator.node_size();
  return std::clamp(share, 1, 256);
}

/// Runs work(0) .. work(count - 1) on threads; rethrows the exception of the lowest index.
template <class Work>
void parallel_for(size_t count, int threads, const Work& work) {
  std::vector<std::exception_ptr> errors(count);
  std::atomic<size_t> next{0};
  const auto run = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  std::vector<std::thread> others;
  for (size_t t = 1; t < std::min(static_cast<size_t>(threads), count); ++t) others.emplace_back(run);
  run();
  for (std::thread& thread : others) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

/// Collective. process(item) -> Result runs on threads for the items [begin, end) of this rank, collect(item, result)
/// on the calling thread in item order. After a UserError on any rank all stop, and every rank throws. `progress` gets
/// the share of all ranks' items that is done, on rank 0.
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
        parallel_for(n, threads, [&](size_t i) { results[i] = process(next + static_cast<int64_t>(i)); });
        for (size_t i = 0; i < n; ++i) collect(next + static_cast<int64_t>(i), results[i]);
        next += static_cast<int64_t>(n);
      }
    } catch (const UserError&) {
      error = std::current_exception();
    }
    int64_t state[] = {error ? 1 : 0, next - own.begin, own.end - own.begin};
    communicator.sum(state);
    if (state[0] > 0) {
      raise_together(communicator, [&] {
        if (error) std::rethrow_exception(error);
      });
    }
    if (communicator.rank() == 0 && progress && state[2] > 0) {
      progress(static_cast<double>(state[1]) / static_cast<double>(state[2]));
    }
    if (state[1] == state[2]) return;
  }
}

}  // namespace llmtrain
