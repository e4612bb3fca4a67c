#pragma once
#include <chrono>

namespace llmtrain {

/// Seconds of a monotonic clock; only differences are meaningful.
inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace llmtrain
