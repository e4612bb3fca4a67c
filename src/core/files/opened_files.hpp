#pragma once
#include <atomic>
#include <cstdint>

namespace llmtrain {

/// Number of opens and creations of files so far, of this process: of the run, its data and its checkpoints. Each of
/// them is a request to the metadata server of a shared file system, which serves all nodes.
inline std::atomic<int64_t>& opened_files() {
  static std::atomic<int64_t> count{0};
  return count;
}

}  // namespace llmtrain
