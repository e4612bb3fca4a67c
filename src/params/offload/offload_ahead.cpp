#include "params/offload/offload_ahead.hpp"

#include <algorithm>
#include <utility>

namespace llmtrain {

OffloadAhead::OffloadAhead(const OffloadFile& file, size_t kind, char* memory)
    : file_(file), kind_(kind), memory_(memory), thread_([this] { work(); }) {}

OffloadAhead::~OffloadAhead() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

int64_t OffloadAhead::bytes(const OffloadLayout& layout, size_t kind) {
  int64_t most = 0;
  for (int unit = 0; unit < layout.units(); ++unit) {
    int64_t bytes = 0;
    for (size_t p = layout.pieces_before(unit); p < layout.pieces_before(unit + 1); ++p) {
      bytes += layout.bytes_of(layout.pieces()[p], kind, kind + 1);
    }
    most = std::max(most, bytes);
  }
  return most;
}

void OffloadAhead::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return busy_ || stop_; });
    if (!busy_) return;
    lock.unlock();
    std::exception_ptr error;
    try {
      file_.read_unit(unit_, kind_, memory_);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    error_ = std::move(error);
    busy_ = false;
    changed_.notify_all();
  }
}

void OffloadAhead::forget() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !busy_; });
  unit_ = -1;
  error_ = nullptr;
}

void OffloadAhead::begin(int unit) {
  forget();
  if (unit < 0 || unit >= file_.layout().units()) return;
  {
    const std::lock_guard lock(mutex_);
    unit_ = unit;
    busy_ = true;
  }
  changed_.notify_all();
}

const char* OffloadAhead::take(int unit) {
  std::unique_lock lock(mutex_);
  if (unit_ != unit) {
    lock.unlock();
    begin(unit);
    lock.lock();
  }
  changed_.wait(lock, [this] { return !busy_; });
  if (error_) {
    unit_ = -1;
    std::rethrow_exception(std::exchange(error_, nullptr));
  }
  return memory_;
}

}  // namespace llmtrain
