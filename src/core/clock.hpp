#pragma once
#include <chrono>

namespace llmtrain {

/// Seconds of a clock that never jumps; only differences mean something.
inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace llmtrain
