#include "core/progress.hpp"

#include <algorithm>
#include <utility>

#include "core/clock.hpp"

namespace llmtrain {

namespace {

constexpr double seconds_before_first = 0.5;  ///< shorter work is not shown
constexpr double seconds_between = 0.1;
constexpr double seconds_to_predict = 1;  ///< after which the time left is known well enough

std::atomic<ProgressDisplay*> current{nullptr};

}  // namespace

ProgressScope::ProgressScope(ProgressDisplay* display) : before_(current.load()) {
  if (display != nullptr) current = display;
}
ProgressScope::~ProgressScope() { current = before_; }

bool Progress::is_displayed() { return current.load(std::memory_order_relaxed) != nullptr; }

Progress::Progress(std::string what, int64_t total)
    : what_(std::move(what)),
      total_(std::max<int64_t>(total, 1)),
      begin_(now()),
      next_(begin_ + seconds_before_first) {}

Progress::~Progress() {
  ProgressDisplay* display = current;
  if (shown_ && display != nullptr) display->clear();
}

void Progress::set(int64_t done) {
  if (is_displayed()) set_fraction(static_cast<double>(done) / static_cast<double>(total_));
}

void Progress::set_fraction(double done) {
  ProgressDisplay* display = current;
  if (display == nullptr) return;
  const double time = now();
  double due = next_;
  if (time < due || !next_.compare_exchange_strong(due, time + seconds_between)) return;  // or another thread shows it
  ProgressState state{what_, std::clamp(done, 0.0, 1.0), -1};
  const double elapsed = time - begin_;
  if (state.done > 0 && elapsed >= seconds_to_predict) state.seconds_left = elapsed * (1 - state.done) / state.done;
  shown_ = true;
  display->show(state);
}

}  // namespace llmtrain
