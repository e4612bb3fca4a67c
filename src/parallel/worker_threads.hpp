#pragma once
#include <algorithm>

#include "parallel/communicator.hpp"
#include "parallel/job/launcher.hpp"

namespace llmtrain {

/// Number of threads of this rank for work beside kernels, such as reading files: as many as kernels use, up to a
/// limit.
inline int worker_threads(const Communicator& communicator) {
  return std::min(choose_threads(find_thread_facts(communicator.node_size())).threads, 256);
}

}  // namespace llmtrain
