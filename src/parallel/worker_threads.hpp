#pragma once
#include <algorithm>

#include "parallel/communicator.hpp"
#include "parallel/job/launcher.hpp"

namespace llmtrain {

/// Threads this rank may use for work beside kernels, such as reading files: as many as those have, within reason.
inline int worker_threads(const Communicator& communicator) {
  return std::min(choose_threads(find_thread_facts(communicator.node_size())).threads, 256);
}

}  // namespace llmtrain
