#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

namespace llmtrain {

/// Resident memory in bytes, read by `now` at most as often as the cost allows.
/// The kernel walks all pages for this value, a second and more for 100 GiB: it may take at most 1 % of the time.
class MemoryGauge {
 public:
  using Clock = std::chrono::steady_clock;

  explicit MemoryGauge(std::function<int64_t()> now) : now_(std::move(now)) {}
  int64_t bytes() {
    const Clock::time_point begin = Clock::now();
    if (now_ && begin >= next_) {
      bytes_ = now_();
      const Clock::time_point end = Clock::now();
      next_ = end + 100 * (end - begin);
    }
    return bytes_;
  }

 private:
  std::function<int64_t()> now_;
  int64_t bytes_ = 0;
  Clock::time_point next_;  ///< earliest time of the next call
};

}  // namespace llmtrain
