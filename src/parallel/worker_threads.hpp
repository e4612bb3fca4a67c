#pragma once
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "parallel/communicator.hpp"

namespace llmtrain {

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

}  // namespace llmtrain
